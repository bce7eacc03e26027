"""One trace of two ranks, on one clock."""

import json

import pytest

START = """
import pyrannc, sys, torch
from torch import nn

layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
config = pyrannc.Config(partition_num=2, replica_nums=[1, 1], pipeline_num=2, comm_timeout_s=30)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
model = pyrannc.RaNNCModule(layers, optimizer, config)


def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.ranks(
    """
import os, tempfile
step()
path = os.path.join(tempfile.gettempdir(), f"rannc-trace-{os.getppid()}.json")
with pyrannc.trace(model, path):
    step()
    step()
if pyrannc.get_rank() == 0:
    print(open(path).read())
    os.unlink(path)
""",
    before=START,
)
def test_arrows_go_from_one_rank_to_the_other_and_forward_in_time(done):
    events = json.loads(done.stdout)
    real = [event for event in events if event["pid"] < 1_000_000]
    assert {event["pid"] for event in real} == {0, 1}
    sends = {event["id"]: event for event in real if event["ph"] == "s"}
    receives = {event["id"]: event for event in real if event["ph"] == "f"}
    # Two micro-batches forward and back in each of two steps, at least.
    assert sends.keys() == receives.keys() and len(sends) >= 8
    for name, send in sends.items():
        assert send["pid"] != receives[name]["pid"]
        assert send["ts"] <= receives[name]["ts"], "a message arrives before it is sent"
    foretold = {event["pid"] for event in events if event["pid"] >= 1_000_000}
    assert foretold == {1_000_000, 1_000_001}


@pytest.mark.ranks(
    """
for _ in range(12):
    step()
found = model.metrics()
print(found["steps"], len(found["ranks"]), len(found["stages"]))
""",
    before=START,
)
def test_every_rank_has_the_metrics_of_all(done):
    assert done.stdout.splitlines() == ["12 2 2"] * 2
