"""Gradients are added up from micro-batch to micro-batch by nodes of our own, one for all small
parameters. What a parameter gets never depends on what another one gets."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule

LARGE = 40_000  # times 8 float64: more than small parameters have together


class Shared(nn.Module):
    """Parameters whose gradients are one and the same tensor, or views of one, used twice, not at
    all, frozen, and large ones."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(8)) for _ in range(2))
        self.viewed = nn.Parameter(torch.randn(2, 4))
        self.scalar, self.one = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(1))
        self.twice = nn.Parameter(torch.randn(8, 8))
        self.never = nn.Parameter(torch.randn(8))
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.large, self.turned = (nn.Parameter(torch.randn(LARGE, 8) / 100) for _ in range(2))

    def forward(self, x):
        # Equal shapes: both get the same gradient, and views of it go to the others.
        sums = self.first + self.second + self.frozen + self.viewed.view(8)
        x = x * (self.scalar + self.one.squeeze(0))
        y = torch.tanh(x @ self.twice + sums) @ self.twice.t()
        wide = y @ (self.large.t() + self.turned.t())
        return (y.square().mean(1) + wide.square().mean(1)).mean()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_gradients_are_those_of_one_backward_times_all_factors(schedule, micro_batches, recompute):
    torch.manual_seed(0)
    twin = Shared().double()
    config = Config(schedule=schedule, pipeline_num=micro_batches, recompute=recompute)
    model = RaNNCModule(copy.deepcopy(twin), None, config)
    x = torch.randn(8, 8, dtype=torch.float64)
    for factor in (3.0, 0.5):  # the second adds to the first
        (factor * model(x)).backward()
    loss = model(x)
    loss.backward(retain_graph=True)
    loss.backward()
    # torch itself adds to two gradients of one memory where backward() runs twice.
    trained = {name: each for name, each in twin.named_parameters() if each.requires_grad}
    gradients = torch.autograd.grad(twin(x), trained.values(), allow_unused=True)
    found = dict(model.named_parameters())
    for name, once in zip(trained, gradients, strict=True):
        expected = None if once is None else 5.5 * once
        torch.testing.assert_close(found[name].grad, expected, rtol=1e-12, atol=1e-12)
