"""Hosts with other numbers of ranks, and ranks that are dealt out to hosts in turn."""

import json
import sys

import pytest
from on_hosts import VARIABLES, Hosts

pytestmark = pytest.mark.hosts

RUN = [sys.executable, "-c", "from pyrannc.cli import main; main()", "run", "--env", "PYTHONPATH"]
# Gradients are large and what goes from stage to stage is small: replicas belong on one host.
SCRIPT = """
import json, sys
import pyrannc, torch
from torch import nn

torch.manual_seed(0)
rank, ranks = pyrannc.get_rank(), pyrannc.get_world_size()
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
replicas = {3: [int(each) for each in sys.argv[2].split("+")], 4: [2, 2]}[ranks]
config = pyrannc.Config(partition_num=2, replica_nums=replicas, calibrate=False)
model = pyrannc.RaNNCModule(model, optimizer, config)
losses = []
for step in range(3):
    batch = torch.randn(12, 256, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    loss = model(batch.chunk(ranks)[rank]).square().mean()
    loss.backward()
    optimizer.step()
model.save_deployment(sys.argv[1])
"""


@pytest.fixture(scope="module")
def slow(folder):
    with Hosts(2, "--ssh", "--rate", "20mbit", share=[folder]) as slow:
        yield slow


# Each rank counted as a host of its own, so replicas were put on two hosts as soon as on one.
@pytest.mark.parametrize(
    "hosts, replicas, hosts_of_ranks",
    [
        ("h1:1,h2:2", "1+2", [0, 1, 1]),
        ("h1:2,h2:1", "1+2", [0, 0, 1]),
        ("dealt out", "2+2", [0, 1, 0, 1]),
    ],
)
def test_replicas_stay_on_one_host(slow, folder, hosts, replicas, hosts_of_ranks):
    script, saved = folder / "uneven.py", folder / "plan.json"
    script.write_text(SCRIPT)
    dealt = {"OMPI_MCA_rmaps_base_mapping_policy": "node"} if hosts == "dealt out" else {}
    listed = "h1:2,h2:2" if dealt else hosts
    command = [*RUN, "-n", str(len(hosts_of_ranks)), "--hosts", listed]
    done = slow.run("h1", [*command, str(script), str(saved), replicas], VARIABLES | dealt)
    assert done.returncode == 0, done.stderr
    plan = json.loads(saved.read_text())
    assert plan["notes"]["host_of_rank"] == hosts_of_ranks
    of_stages = [{hosts_of_ranks[rank] for rank in stage["ranks"]} for stage in plan["stages"]]
    assert sorted(map(sorted, of_stages)) == [[0], [1]], plan["stages"]
