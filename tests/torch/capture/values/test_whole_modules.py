"""Modules that look for the elements they compute with, against eager: one rank, four
micro-batches."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule, TraceError
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check

EXPERTS = 4


class Experts(nn.ModuleList):
    def __init__(self, make=lambda: nn.Linear(6, 6)):
        super().__init__([make() for _ in range(EXPERTS)])

    def forward(self, x, chosen):
        result = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, EXPERTS).T
        for (expert,) in mask.sum(-1).nonzero():
            (places,) = torch.where(mask[expert])
            result.index_add_(0, places, self[expert](x[places]))
        return result


class Mixture(nn.Module):
    def __init__(self, experts, unused=()):
        super().__init__()
        torch.manual_seed(5)
        self.body, self.router, self.experts = nn.Linear(4, 6), nn.Linear(6, EXPERTS), experts
        with torch.no_grad():
            self.router.bias[list(unused)] = -100.0

    def forward(self, x):
        x = self.body(x).flatten(0, 1)
        weights, chosen = self.router(x).softmax(-1).max(-1)
        return (self.experts(x, chosen) * weights.unsqueeze(-1)).square().mean()


@pytest.mark.parametrize("unused", [(), (2,)], ids=["all", "three"])
def test_a_loop_over_experts_trains_as_in_eager(unused):
    plain = Mixture(Experts(), unused).double()
    twin = copy.deepcopy(plain)
    optimizers = [
        torch.optim.AdamW(one.parameters(), lr=0.1, weight_decay=0.5) for one in (plain, twin)
    ]
    model = RaNNCModule(plain, optimizers[0], Config(pipeline_num=4))
    for seed in range(3):
        x = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(seed)).double()
        losses = []
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(one(x))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses)
    for (name, parameter), expected in zip(
        plain.named_parameters(), twin.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter, expected, msg=lambda text, name=name: name + text)


def test_its_rows_are_apart():
    model, x = Mixture(Experts()), torch.randn(4, 5, 4)
    found = check(model, capture(model, (x,)), (x,), {})
    assert found.ok and found.rows_proved, found.skipped


class Counting(Experts):
    def forward(self, x, chosen):
        self.calls = getattr(self, "calls", 0) + len(chosen.nonzero())
        return super().forward(x, chosen)


class Normalising(Experts):
    def forward(self, x, chosen):
        some = x[chosen.nonzero().squeeze(-1)]
        return x - (some.sum(0) / (len(some) + 1))


class Hooked(Experts):
    def __init__(self):
        super().__init__()
        self[0].register_forward_hook(lambda module, args, result: result * 2)


REFUSED = {
    "it draws random numbers": lambda: Experts(
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    ),
    "it changes its attribute 'calls'": Counting,
    "it has hooks": Hooked,
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_no_node_can_do_is_refused(why):
    with pytest.raises(TraceError, match=f"'experts': the values of a tensor decide.*{why}"):
        capture(Mixture(REFUSED[why]()), (torch.randn(4, 5, 4),))


def test_rows_that_interact_are_found():
    model, x = Mixture(Normalising()), torch.randn(4, 5, 4)
    found = check(model, capture(model, (x,)), (x,), {})
    assert found.ok and not found.rows_proved
