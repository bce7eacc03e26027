"""Buffers that forward() reads as numbers of Python, and moves, on two ranks."""

import pytest

MODEL = """
import pyrannc, torch
from torch import nn
from torch.nn import functional as F
from beside_one_process import compare

class Contrast(nn.Module):
    size = 12

    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
        self.key = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(4, self.size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.register_buffer("full", torch.tensor(False))

    def forward(self, x):
        with torch.no_grad():
            for ours, theirs in zip(self.key.parameters(), self.query.parameters()):
                ours.data = 0.9 * ours.data + 0.1 * theirs.data
            keys = F.normalize(self.key(x), dim=1)
        queries = F.normalize(self.query(x), dim=1)
        near = (queries * keys).sum(1, keepdim=True)
        logits = torch.cat([near, queries @ self.queue.clone().detach()], 1)
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        return self.put(keys, loss)

def step(model, batch):
    loss = model(*batch)
    loss.backward()
    return dict(loss=loss)
"""
PUT = {
    "int": """
        at = int(self.pointer)
        assert self.size % len(keys) == 0
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % self.size
        return loss""",
    "item": """
        at = self.pointer[0].item()
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer.fill_((at + len(keys)) % self.size)
        return loss""",
    "wrapped_round": """
        at, rows = int(self.pointer), len(keys)
        first = min(rows, self.size - at)
        self.queue[:, at : at + first] = keys[:first].T
        if first < rows:
            self.queue[:, : rows - first] = keys[first:].T
        self.pointer[0] = (at + rows) % self.size
        return loss""",
    "flag": """
        at = int(self.pointer)
        if self.full:
            loss = 2 * loss
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = at = (at + len(keys)) % self.size
        if at == 0:
            self.full.fill_(True)
        return loss""",
}


@pytest.mark.parametrize("name", PUT)
@pytest.mark.ranks(
    lambda name: (
        f"""
{MODEL}

class Net(Contrast):
    def put(self, keys, loss):
        {PUT[name].strip()}

rows = 5 if "{name}" == "wrapped_round" else 4
torch.manual_seed(1)
batches = [(torch.randn(rows, 5).double(),) for _ in range(5)]
config = pyrannc.Config(partition_num=2, calibrate=False)
model = compare(Net, batches, step, config)
assert [len(stage.ranks) for stage in model.plan.stages] == [1, 1]
"""
    )
)
def test_a_pointer_that_forward_moves_is_right_in_every_call(done, name):
    pass


@pytest.mark.ranks(
    f"""
{MODEL}

class Net(Contrast):
    size = 40

    def put(self, keys, loss):
        at = int(self.pointer)
        self.queue[:, at : at + len(keys)] = keys.T
        self.pointer[0] = (at + len(keys)) % self.size
        return loss

torch.manual_seed(1)
batches = [(torch.randn(2, 5).double(),) for _ in range(21)]
compare(Net, batches, step, pyrannc.Config(partition_num=2, calibrate=False))
"""
)
def test_more_numbers_than_captures_are_kept_are_right_too(done):
    warned = [line for line in done.stderr.splitlines() if "captured anew, because buffers" in line]
    assert len(warned) == 1 and "'pointer'" in warned[0], done.stderr
