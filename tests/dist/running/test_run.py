"""Calls that a plan's schedule cannot train, on two ranks against one process."""

import pytest


@pytest.mark.ranks(
    """
import copy, pyrannc, torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x, y=None):
        found = self.layers(x)
        return found if y is None else (found - y).square().mean()


torch.manual_seed(0)
twin = Model()
x, y = torch.randn(8, 8), torch.randn(8, 4)
rank = pyrannc.get_rank()
mine = slice(4 * rank, 4 * rank + 4)
config = pyrannc.Config(
    partition_num=2, replica_nums=[1, 1], pipeline_num=2, schedule="1f1b",
    comm_timeout_s=30,
)
model = pyrannc.RaNNCModule(copy.deepcopy(twin), config=config)


def train_both():
    for one, rows in (model, mine), (twin, slice(None)):
        one.zero_grad()
        one(x[rows], y[rows]).backward()
    expected = {name: each.grad for name, each in twin.named_parameters()}
    for name, each in model.named_parameters(from_global=False):
        torch.testing.assert_close(each.grad, expected[name])


train_both()
# In training mode, as generate() in the middle of training without eval().
with torch.no_grad():
    torch.testing.assert_close(model(x[mine]), twin(x)[mine])
for _ in range(2):
    try:
        model(x[mine])
        raise AssertionError("no error")
    except pyrannc.PlanError as error:
        assert "returns no loss to start the backward from" in str(error)
train_both()
state = model.state_dict(rank0_only=False)
for name, value in twin.state_dict().items():
    torch.testing.assert_close(state[name], value)
"""
)
def test_a_call_without_a_loss_needs_none_under_no_grad(done):
    pass
