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


# What is wrong with a checkpoint, beside what pyrannc.load() or save() says of it on every rank.
SAVED = """
import errno, json
from pyrannc.stored import index, parts

place = folder.with_name(folder.name + "-run")
model = wrapped()
model(x).backward()
optimizer.step()
pyrannc.save(place, model, optimizer)
shards = sorted(index.read(place).files)
pyrannc.barrier()  # A rank that still reads the index would meet it half written.

def edit(change):
    if rank == 0:
        content = json.loads((place / index.NAME).read_text())
        change(content)
        (place / index.NAME).write_text(json.dumps(content))
    pyrannc.barrier()

def cut(change):
    if rank == 0:
        path = place / shards[0]
        path.write_bytes(change(path.read_bytes()))
    pyrannc.barrier()

def bad():
    pyrannc.load(place, model, optimizer)
"""
CHECKPOINTS = {
    "a tensor is missing": (
        """
model = nn.ModuleDict({"first": net.first, "second": net.second, "third": nn.Linear(2, 2)})
""",
        "2 of the model's 6 tensors are not in it: 'third.bias', 'third.weight'",
    ),
    "a tensor more": (
        """
model = nn.ModuleDict({"first": nn.Linear(6, 6)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        "'second.bias'",
    ),
    "a tensor of another shape": (
        """
net.first = nn.Linear(6, 5)
model, optimizer = net, None
""",
        "'first.bias' is [5] in the model and [6] in",
    ),
    "of another model": (
        """
model, optimizer = nn.Linear(6, 6), None
""",
        "is not a checkpoint of this model",
    ),
    "a shard that is cut off": (
        """
cut(lambda content: content[:-1])
""",
        "it was cut off or edited",
    ),
    "a shard that is edited": (
        """
cut(lambda content: content[:-1] + bytes([content[-1] ^ 1]))
""",
        "its bytes are not those that were saved",
    ),
    "a shard that is gone": (
        """
if rank == 0:
    (place / shards[0]).unlink()
pyrannc.barrier()
""",
        "is missing, which rannc.json names",
    ),
    "an index that points elsewhere": (
        """
edit(lambda content: content["files"].update({"../other.safetensors": 3}))
""",
        "'../other.safetensors', which is not one of its own folder",
    ),
    "a newer format": (
        """
edit(lambda content: content.update(format=7, pyrannc="9.0"))
""",
        "has format 7, of pyrannc 9.0",
    ),
    "the state of another class": (
        """
model, optimizer = net, torch.optim.Adagrad(net.parameters())
""",
        "Adagrad",
    ),
    "other groups": (
        """
groups = [{"params": each.parameters()} for each in (net.first, net.second)]
model, optimizer = net, torch.optim.SGD(groups, lr=0.1)
""",
        "1 parameter groups, this one has 2",
    ),
    "a folder that one rank does not see": (
        """
place = place.with_name("nothing") if rank == 1 else place
""",
        "rank 1: ",
    ),
    "a disk that is full on one rank": (
        """
def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

writers = sorted({int(name.split("-")[2]) for name in shards})
if rank == writers[-1]:
    parts.save_file = full
before = index.read(place)

def bad():
    try:
        pyrannc.save(place, model, optimizer)
    finally:
        assert index.read(place) == before
        pyrannc.load(place, model, optimizer)
""",
        "-run cannot be written: [Errno 28] No space left on device",
    ),
}
CASES |= {name: (SAVED + code, told) for name, (code, told) in CHECKPOINTS.items()}
CASES |= {
    "zero with an optimizer that needs whole parameters": (
        """
def bad():
    wrapped(torch.optim.Adafactor(net.parameters()), zero=True)
""",
        "zero shares the state of Adafactor out over the replicas",
    ),
    "a model without values": (
        """
with torch.device("meta"):
    net = Net()
    net.third = nn.Parameter(torch.empty(6))  # which no reset_parameters() fills
    net.forward = lambda x, net=net: Net.forward(net, x + net.third)
optimizer = None
model = wrapped(None)

def bad():
    model(x)
""",
        "'third'",
    ),
    "an option of Trainer that cannot work": (
        """
from transformers import TrainingArguments
from pyrannc.integrations.transformers import Trainer

pyrannc.init()  # as under a bare mpirun
options = TrainingArguments(str(folder.parent), use_cpu=True, torch_compile=True)

def bad():
    Trainer(net, options, rannc_config=config)
""",
        "TrainingArguments(torch_compile=...) does not work with RaNNC's Trainer",
    ),
    "a front end that one rank lacks": (
        """
if rank == 1:
    sys.modules["torch.export"] = None
os.environ["RANNC_FRONTEND"] = "export"
model = RaNNCModule(net)

def bad():
    model(x)
""",
        "rank 1: the front end 'export' is not installed",
    ),
    "a front end that nobody knows": (
        """
os.environ["RANNC_FRONTEND"] = "onnx"

def bad():
    RaNNCModule(net)(x)
""",
        "'onnx' in the environment (RANNC_FRONTEND): expected one of torchscript, export, auto",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_has_the_error_and_the_job_fails(case, tmp_path):
    code, told = CASES[case]
    job = mpi.run(BEGIN.format(folder=str(tmp_path)) + code + END, 2, timeout=60)
    assert job.returncode not in (0, None), job.stderr[-2000:]
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert len(texts) == 2, (texts, job.stderr[-2000:])
    assert all(told in text for text in texts), texts
    assert all("\n  " in text or "expected one of" in text for text in texts), texts  # what to do
    assert "ends the job" in job.stderr or "Traceback" in job.stderr, job.stderr[-2000:]
