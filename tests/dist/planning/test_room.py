"""A plan leaves room for what NCCL's connections take of the devices' memory.

On the stand-in device with the stand-in NCCL, which takes as much as it is told to.
"""

import json

import mpi
import nccl
import pytest

pytestmark = pytest.mark.skipif(not nccl.FILE.exists(), reason=f"{nccl.FILE} was not built")
MEMORY_MIB = 256
# What a plan leaves: the device's allocator keeps memory that messages have had, how much depends
# on what they meet.
MARGIN = 0.5

# Two stages, of four layers each that keep half a MiB a row from forward to backward, or with
# recompute what the first of them got.
PROGRAM = """
import json
import torch
import nccl, standin
import pyrannc
from pyrannc import launch

standin.start(delay_us=20, memory_bytes=MEMORY_MIB << 20)
world = launch.world()

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1 << 17))

    def forward(self, x):
        return torch.tanh(x * self.weight)

model = torch.nn.Sequential(*[Scale() for _ in range(8)]).to("standin:0")
config = pyrannc.Config(
    device_transport="nccl", nccl_library=str(nccl.FILE), self_check=False, calibrate=False,
    partition_num=2, replica_nums=[1, 1], pipeline_num=4, profile_cache="FOLDER",
    mem_margin=MARGIN,
)
wrapped = pyrannc.RaNNCModule(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
x = torch.ones(8, 1 << 17, device="standin:0")
try:
    for _ in range(2):
        loss = wrapped(x).square().mean()
        loss.backward()
except pyrannc.InfeasibleError as error:
    print(f"does not fit: {error}")
else:
    plan = wrapped._deployment.plan
    free, total = torch.accelerator.get_memory_info("standin:0")
    taken = total - free - torch.accelerator.memory_reserved("standin:0")
    if world.rank == 0:
        recompute = [stage.recompute for stage in plan.stages]
        print("found", json.dumps([recompute, max(plan.step.peak_bytes), taken]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains where each connection takes so many MiB; what has been measured is kept."""
    folder = tmp_path_factory.mktemp("measured")

    def train(mib):
        program = PROGRAM
        for word, value in ("FOLDER", folder), ("MEMORY_MIB", MEMORY_MIB), ("MARGIN", MARGIN):
            program = program.replace(word, str(value))
        environment = {"STANDIN_NCCL_CONNECTION_MIB": str(mib), "RANNC_LOG_LEVEL": "info"}
        job = mpi.run(program, 2, env=environment)
        assert job.returncode == 0, job.stdout + job.stderr
        return job

    return train


def found(job):
    (line,) = (line for line in job.stdout.splitlines() if line.startswith("found"))
    return json.loads(line.removeprefix("found"))


def limit_bytes(taken):
    """Of a plan beside what is taken."""
    return (1 - MARGIN) * ((MEMORY_MIB << 20) - taken)


def test_a_plan_that_does_not_fit_beside_the_connections_is_not_taken(trained):
    fast, needed, none = found(trained(0))
    assert (fast, none) == ([False, False], 0)
    job = trained(54)
    recompute, peak, taken = found(job)
    assert peak <= limit_bytes(taken) < needed < limit_bytes(none)
    assert True in recompute
    assert "too little for the plan" in job.stderr


def test_where_no_plan_fits_beside_the_connections_the_error_says_what_they_leave(trained):
    printed = trained(75).stdout
    assert printed.count("does not fit: no plan fits") == 2
    text = "Of 252.0 MiB of a device's memory, NCCL's connections have left 27.0 MiB."
    assert printed.count(text) == 2
