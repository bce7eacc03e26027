"""Optimizers around another one."""

import collections
import copy

import pytest
import torch
from lookahead import Lookahead
from torch import nn

import pyrannc
from pyrannc.optimizer import around_another


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: the state is that of the one inside."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def state_dict(self):
        return self.optimizer.state_dict()


def test_one_around_another_is_not_saved_without_the_state_of_both(tmp_path):
    """It was, and a run that went on from there had lost the averages."""
    model = nn.Linear(4, 2)
    optimizer = Lookahead(torch.optim.Adam(model.parameters()))
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    for call, what in ((pyrannc.save, "save"), (pyrannc.load, "load")):
        with pytest.raises(pyrannc.RaNNCError, match=rf"{what}\(\): Lookahead is around Adam,"):
            call(tmp_path, model, optimizer)
    assert not list(tmp_path.iterdir())


def test_a_mere_wrapper_and_its_optimizer_are_one():
    optimizer = torch.optim.Adam(nn.Linear(4, 2).parameters())
    assert around_another.inner(Wrapper(optimizer)) == []
    around_another.refuse(Wrapper(optimizer), "saving")
    outer = Lookahead(optimizer)
    assert around_another.with_inner([outer]) == [outer, optimizer]


class Bare(torch.optim.Optimizer):
    """Lookahead as it is often published: it does not call super().__init__()."""

    def __init__(self, optimizer):
        self.optimizer, self.calls = optimizer, 0
        self.param_groups = optimizer.param_groups
        self.state = collections.defaultdict(dict)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
                if self.calls % 2 == 0:
                    slow += (parameter.data - slow) * 0.5
                    parameter.data.copy_(slow)
        return loss

    def zero_grad(self):
        self.optimizer.zero_grad()


def trained(model, optimizer):
    for step in range(5):
        optimizer.zero_grad()
        model(torch.full((3, 4), step + 1.0)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def test_one_that_knows_of_no_hooks_steps_as_without_a_wrapper():
    plain = nn.Linear(4, 2)
    model = copy.deepcopy(plain)
    expected = trained(plain, Bare(torch.optim.Adam(plain.parameters(), lr=0.1)))
    optimizer = Bare(torch.optim.Adam(model.parameters(), lr=0.1))
    model = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(calibrate=False))
    torch.testing.assert_close(trained(model, optimizer), expected)
