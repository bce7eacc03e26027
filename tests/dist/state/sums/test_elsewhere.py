"""Penalties over parameters in the training loop, of which each rank holds some."""

import pytest

MODEL = """
import pyrannc, torch
from torch import nn
from torch.nn import functional as F
from beside_one_process import compare

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 256), nn.Linear(256, 3)
        self.middle = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))

    def forward(self, x, labels):
        return F.cross_entropy(self.last(self.middle(torch.tanh(self.first(x)))), labels)

anchors = []

def step(model, batch):
    loss = model(*batch)
    parameters = [*model.parameters()]
    if not anchors:
        anchors.extend(torch.full(p.shape, 0.1).double() for p in parameters)
    loss = penalised(loss, parameters, model)
    loss.backward()
    return dict(loss=loss.item())

torch.manual_seed(1)
batches = [(torch.randn(512, 5).double(), torch.randint(3, (512,))) for _ in range(3)]
"""
PENALTIES = {
    "squares": "loss + 0.1 * sum(p.pow(2).sum() for p in parameters)",
    "absolute": "loss + sum(p.abs().sum() for p in parameters) / 50",
    "norms": "loss + 0.1 * sum(torch.norm(p) ** 2 for p in parameters if p.dim() > 1)",
    "root": "loss + torch.sqrt(sum((p * p).sum() for p in parameters))",
    "anchors": "loss + sum((3 * (p - a) ** 2).mean() for p, a in zip(parameters, anchors))",
    "one_layer": "loss + 0.1 * model.first.weight.abs().sum()",
    "in_place": "added(loss, parameters)",
}


def job(name, ranks):
    # A rank that holds all of one layer is asked in a backward that ranks agree on.
    schedule = "gpipe" if name == "one_layer" else "auto"
    return f"""
{MODEL}

def added(loss, parameters):
    penalty = torch.tensor(0.0).double()
    for p in parameters:
        penalty += p.square().sum()
    loss += 0.01 * penalty
    return loss

def penalised(loss, parameters, model):
    return {PENALTIES[name]}

stages = dict(partition_num=2, replica_nums=[{ranks} // 2, {ranks} // 2], schedule="{schedule}")
for plan in stages, dict(partition_num=1, replica_nums=[{ranks}]):
    anchors.clear()
    model = compare(Net, batches, step, pyrannc.Config(calibrate=False, **plan))
    print("holds", len(list(model.parameters(from_global=False))), "of", plan["partition_num"])
"""


def held(stdout):
    lines = [line.split() for line in stdout.splitlines() if line.startswith("holds")]
    return [int(line[1]) for line in lines if line[3] == "2"]


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.ranks(lambda name: job(name, 2))
def test_a_penalty_is_that_of_one_process(done, name):
    assert sum(held(done.stdout)) == 12


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.ranks(lambda name: job(name, 4), number=4)
def test_a_penalty_counts_each_parameter_once_where_there_are_replicas_of_stages(done, name):
    assert sum(held(done.stdout)) == 24


@pytest.mark.ranks(
    f"""
{MODEL}

def penalised(loss, parameters, model):
    return {PENALTIES["one_layer"]}

model = pyrannc.RaNNCModule(Net().double(), config=pyrannc.Config(
    partition_num=2, replica_nums=[1, 1], schedule="1f1b", calibrate=False
))
half = slice(256 * pyrannc.get_rank(), 256 * pyrannc.get_rank() + 256)
loss = penalised(model(*(each[half] for each in batches[0])), None, model)
loss.backward()
try:
    loss.item()
except pyrannc.RaNNCError as error:
    print("refused:", error)
"""
)
def test_where_backwards_are_of_each_rank_alone_the_rank_that_lacks_a_term_is_told_so(done):
    assert done.stdout.count("refused: a number is read of a tensor that this rank has rel") == 1
    assert "schedule='gpipe'" in done.stdout
