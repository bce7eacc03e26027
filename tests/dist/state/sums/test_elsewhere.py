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

stages = dict(partition_num=2, replica_nums=[{ranks} // 2, {ranks} // 2])
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


BY_HAND = f"""
{MODEL}

def shares(batch):
    return [each.tensor_split(pyrannc.get_world_size())[pyrannc.get_rank()] for each in batch]

torch.manual_seed(0)
plain = Net().double()
torch.manual_seed(0)
net = Net().double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model = pyrannc.RaNNCModule(net, optimizer, pyrannc.Config(
    partition_num=2, replica_nums=[1, 1], schedule="1f1b", calibrate=False
))
"""


@pytest.mark.ranks(
    f"""
{BY_HAND}
twins = torch.optim.SGD(plain.parameters(), lr=0.1)
before, after, total = [], [], 0.0
for batch in batches:
    wanted = plain(*batch) + 0.1 * plain.first.weight.abs().sum()
    loss = model(*shares(batch)) + 0.1 * model.first.weight.abs().sum()
    if pyrannc.get_rank() == 1:  # which lacks it; the other rank goes on
        before.append(loss.item() - wanted.item())
    for each, of in (loss, optimizer), (wanted, twins):
        of.zero_grad()
        each.backward()
        of.step()
    after.append((loss / 2).item() - wanted.item() / 2)
    total += loss.detach()
    for found, of in zip(model.parameters(), plain.parameters(), strict=True):
        after.append(found.norm().item() - of.norm().item())
model.state_dict()  # until here ranks answer each other
assert max(map(abs, before + after)) < 1e-9, (before, after)
assert torch.isfinite(total)
print("right", len(before), len(after))
"""
)
def test_one_rank_alone_may_read_a_penalty_before_its_backward_and_all_after_the_step(done):
    assert sorted(line for line in done.stdout.splitlines()) == ["right 0 39", "right 3 39"]


@pytest.mark.ranks(
    f"""
{BY_HAND}
for number, batch in enumerate(batches):
    optimizer.zero_grad()
    loss = model(*shares(batch))
    if number == 2:
        loss = loss + model.first.weight.abs().sum()
    loss.backward()
    if number == 2:
        try:
            loss.item()
        except pyrannc.RaNNCError as error:
            print("refused:", error)
    optimizer.step()
"""
)
def test_a_penalty_that_begins_when_no_rank_looks_for_one_is_refused_where_one_rank_has_it(done):
    assert done.stdout.count("refused: a number is read of tensors that this rank has rel") == 1
    assert "from the first step on, times 0" in done.stdout


@pytest.mark.ranks(
    f"""
{BY_HAND}
loss = model(*shares(batches[0])) + model.first.weight.abs().sum()
loss.backward()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(0.5)
try:
    loss.item()
except pyrannc.RaNNCError as error:
    print("refused:", error)
"""
)
def test_a_penalty_is_not_read_of_parameters_that_the_loop_has_changed(done):
    assert done.stdout.count("refused: a number is read of tensors that this rank has rel") == 1
    assert "have changed since" in done.stdout
