"""transformers' schedule for Adafactor on a rank that has nothing of a group."""

import pytest
import torch
from torch import nn

from pyrannc.wrapper import replaced_for_good

optimization = pytest.importorskip("transformers.optimization")


def test_a_group_without_parameters_here_keeps_its_rate():
    """Symptom: IndexError of transformers in ``scheduler.step()``, on all ranks but one."""
    replaced_for_good.install(replaced_for_good.FIRST_CALL)
    whole, part = nn.ModuleList(nn.Linear(4, 2) for _ in range(2)), nn.Linear(4, 2)
    rates = []
    for groups in (
        [list(each.parameters()) for each in whole],
        [[], list(part.parameters())],
    ):
        optimizer = optimization.Adafactor(
            [{"params": each} for each in groups], lr=None, scale_parameter=False
        )
        schedule = optimization.AdafactorSchedule(optimizer)
        assert schedule.get_lr() == [0.0, 0.0]  # before the first step: those to begin with
        for group in groups:
            for parameter in group:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr())
    (_, second), (kept, mine) = rates
    assert mine == second > 0
    assert kept == 0  # with which the schedule begins
    assert len(optimizer.param_groups) == 2
