"""Bad input is an error with its remedy on every rank, at once, and the job's exit code says so."""

import mpi
import pytest

BEGIN = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
import pyrannc
from pyrannc import Config, RaNNCModule

rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
folder = Path({folder!r})
torch.manual_seed(0)
x = torch.randn(4, 6)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).square().mean()

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
config = Config(partition_num=2, replica_nums=[1, 1], calibrate=False)

def wrapped(optimizer=optimizer, **others):
    return RaNNCModule(net, optimizer, config, **others)
"""
# The error ends the job only when each rank has had one, or none has come for long enough.
END = """
try:
    bad()
except Exception as error:
    (folder / str(rank)).write_text(str(error))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and len(list(folder.iterdir())) < size:
        time.sleep(0.05)
    raise
"""
CASES = {
    "pad for an argument that is not there": (
        """
def bad():
    wrapped(pad={"nothing": 0})(x).backward()
""",
        "The tensor arguments are x.",
    ),
    "one optimizer twice": (
        """
def bad():
    wrapped([optimizer, optimizer])
""",
        "twice",
    ),
    "two optimizers that share parameters": (
        """
def bad():
    wrapped([optimizer, torch.optim.Adam(net.first.parameters())])
""",
        "hold the same parameter, of shape (6, 6)",
    ),
    "summon inside a forward": (
        """
class Summoning(Net):
    def forward(self, x):
        with model.summon():
            return super().forward(x)

net = Summoning()
optimizer = None
model = wrapped(None)

def bad():
    model(x)
""",
        "summon()",
    ),
    "summon on some ranks only": (
        """
model = wrapped()
model(x).backward()

def bad():
    if rank == 0:
        with model.summon():
            pass
    else:
        model(x)
""",
        "summon(",
    ),
    "a backward hook that returns something": (
        """
net.second.register_full_backward_hook(lambda module, grads, _: (grads[0] * 2,))
model = wrapped()

def bad():
    for _ in range(2):
        model(x).backward()
""",
        "a backward hook of 'second'",
    ),
    "another length on each rank": (
        """
class Sums(Net):
    def forward(self, x):
        return super().forward(x.sum(1))

net = Sums()
optimizer = None
model = wrapped(None)

def bad():
    model(torch.randn(4, 3 + rank, 6))
""",
        "pad",
    ),
    "a number of each rank": (
        """
class Scaled(Net):
    def forward(self, x, scale):
        return super().forward(x) * scale

net = Scaled()
optimizer = None
model = wrapped(None)

def bad():
    model(x, torch.tensor(1.0 + rank))
""",
        "is not the same on every rank",
    ),
    "what Accelerate's main process does alone": (
        """
from pyrannc.integrations.accelerate import Accelerator

accelerator = Accelerator(cpu=True, config=config)
model, optimizer = accelerator.prepare(net, optimizer)
model(x).backward()

def bad():
    if accelerator.is_main_process:
        model.state_dict()
    accelerator.wait_for_everyone()
""",
        "rank 1: wait_for_everyone()",
    ),
    "other settings of the optimizer": (
        """
model = wrapped()

def bad():
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (rank + 1)
    for _ in range(2):
        model(x).backward()
        optimizer.step()
""",
        "different settings",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_has_the_error_and_the_job_fails(case, tmp_path):
    code, told = CASES[case]
    job = mpi.run(BEGIN.format(folder=str(tmp_path)) + code + END, 2, timeout=60)
    assert job.returncode not in (0, None), job.stderr[-2000:]
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert len(texts) == 2, (texts, job.stderr[-2000:])
    assert all(told in text and "\n  " in text for text in texts), texts
    assert "ends the job" in job.stderr or "Traceback" in job.stderr, job.stderr[-2000:]
