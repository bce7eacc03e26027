"""Optimizers around another one."""

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
