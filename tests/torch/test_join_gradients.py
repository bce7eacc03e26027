"""Gradients of small parameters are added up by one node of autograd: as torch does it by many."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule


class Shared(nn.Module):
    """Parameters whose gradients are one and the same tensor, used twice, not at all, frozen, and
    too large to be joined."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(8)) for _ in range(2))
        self.twice = nn.Parameter(torch.randn(8, 8))
        self.never = nn.Parameter(torch.randn(8))
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.large = nn.Parameter(torch.randn(8, 40000) / 100)

    def forward(self, x):
        sums = self.first + self.second + self.frozen  # equal shapes: both get the same gradient
        y = torch.tanh(x @ self.twice + sums) @ self.twice.t()
        return (y.square().mean(1) + (y @ self.large).square().mean(1)).mean()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_gradients_equal_those_of_torch(schedule, micro_batches, recompute):
    torch.manual_seed(0)
    twin = Shared().double()
    config = Config(schedule=schedule, pipeline_num=micro_batches, recompute=recompute)
    model = RaNNCModule(copy.deepcopy(twin), None, config)
    x = torch.randn(8, 8, dtype=torch.float64)
    for factor in (3.0, 0.5):  # the second adds to the first
        (factor * model(x)).backward()
        (factor * twin(x)).backward()
    loss, of_twin = model(x), twin(x)
    loss.backward(retain_graph=True)
    loss.backward()
    (2 * of_twin).backward()
    found = dict(model.named_parameters())
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(found[name].grad, parameter.grad, rtol=1e-12, atol=1e-12)
