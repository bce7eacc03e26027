"""Trying the user's optimizer touches neither it nor the model."""

import pytest
import torch

from pyrannc.optimizer import steps_on_copies
from pyrannc.optimizer.steps_on_copies import StepBesideRuns


class Refuses(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("not today")


def parameters():
    return [torch.ones(8, 4, requires_grad=True), torch.ones(4, requires_grad=True)]


def test_a_step_beside_runs_leaves_everything_as_it_was():
    first, second = parameters()
    groups = [{"params": [second], "lr": 0.5}, {"params": [first]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("hook"))
    beside = StepBesideRuns([optimizer], [first, second])
    assert beside.factor == 1
    gradients = [torch.full((8, 4), 2.0), None]
    assert beside.step(gradients) > 0
    assert torch.equal(first, torch.ones(8, 4)) and torch.equal(second, torch.ones(4))
    assert first.grad is None and not optimizer.state and not called
    assert torch.equal(gradients[0], torch.full((8, 4), 2.0))
    assert len(optimizer.param_groups[0]["params"]) == 1


def test_of_a_large_model_a_part_is_tried(monkeypatch):
    monkeypatch.setattr(steps_on_copies, "MOST_COPIED_BYTES", 100)
    held = parameters()  # 128 and 16 bytes: six rows of the first and one element of the second
    beside = StepBesideRuns([torch.optim.AdamW(held, lr=0.1)], held)
    assert beside.factor == 144 / 100
    assert beside.step([torch.ones(8, 4), torch.ones(4)]) > 0
    assert StepBesideRuns([torch.optim.SGD(held, lr=0.1)], held[1:]).factor == 1


def test_a_rank_without_parameters_steps_for_nothing():
    held = [parameter.requires_grad_(False) for parameter in parameters()]
    beside = StepBesideRuns([torch.optim.SGD(held, lr=0.1)], held)
    assert beside.factor == 0 and beside.step([None, None]) == 0


@pytest.mark.filterwarnings("error")
def test_an_optimizer_that_cannot_be_tried_counts_as_nothing():
    held = parameters()
    beside = StepBesideRuns([Refuses(held, lr=0.1)], held)
    assert beside.step([torch.ones(8, 4), torch.ones(4)]) == 0
    assert beside.factor == 0
