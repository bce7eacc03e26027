"""Models that return a number beside what the training loop makes its loss of, on two ranks."""

import pytest

MODEL = """
import pyrannc, torch
from torch import nn
from torch.nn import functional as F
from beside_one_process import compare

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(5, 8), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, x, labels=None):
        hidden = self.body(x)
        logits = self.head(hidden)
        if labels is not None:
            return F.cross_entropy(logits, labels)
        return returned(logits, hidden)

def batches(count):
    torch.manual_seed(1)
    return [(torch.randn(7, 5).double(), torch.randint(3, (7,))) for _ in range(count)]

STAGES = dict(partition_num=2, replica_nums=[1, 1], calibrate=False)
REPLICAS = dict(partition_num=1, replica_nums=[2], calibrate=False)
"""
RETURNED = {
    "auxiliary": ("logits, hidden.square().mean()", "F.cross_entropy(out[0], y) + 0.1 * out[1]"),
    "reversed": ("hidden.square().mean(), logits", "F.cross_entropy(out[1], y) + 0.1 * out[0]"),
    "of_logits": (
        "logits, logits.logsumexp(1).square().mean()",
        "F.cross_entropy(out[0], y) + 0.1 * out[1]",
    ),
    "several": (
        "logits, hidden, hidden.abs().mean()",
        "F.cross_entropy(out[0], y) + out[1].abs().mean() + out[2]",
    ),
    "in_a_dict": (
        "{'logits': logits, 'aux_loss': hidden.square().mean()}",
        "F.cross_entropy(out['logits'], y) + 0.1 * out['aux_loss']",
    ),
}


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.ranks(
    lambda name: (
        f"""
{MODEL}

def returned(logits, hidden):
    return {RETURNED[name][0]}

def step(model, batch):
    x, y = batch
    out = model(x)
    loss = {RETURNED[name][1]}
    loss.backward()
    return dict(loss=loss)

for plan in (STAGES, REPLICAS):
    model = compare(Net, batches(2), step, pyrannc.Config(**plan), own=True)
    assert model.plan.schedule == "gpipe"
"""
    )
)
def test_a_loss_outside_of_the_model_gets_fill_drain(done, name):
    told = [
        line for line in done.stderr.splitlines() if "loss seems to be computed outside" in line
    ]
    assert told and all("'gpipe'" in line for line in told), done.stderr


@pytest.mark.ranks(
    f"""
{MODEL}

def returned(logits, hidden):
    return logits

calls = [0]

def step(model, batch):
    x, y = batch
    calls[0] += 1
    if calls[0] <= 2:  # one of each model
        loss = model(x, y)
    else:
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return dict()

for plan in (STAGES, REPLICAS, dict(schedule="auto", calibrate=False)):
    calls[0] = 0
    model = compare(Net, batches(3), step, pyrannc.Config(**plan))
    assert model.plan.schedule in ("1f1b", "interleaved")
"""
)
def test_a_later_call_without_a_loss_runs_under_fill_drain(done):
    pass
