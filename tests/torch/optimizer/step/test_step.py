"""The code of a step that scopes stand around, however the class came by it."""

import functools

import pytest
import torch
from torch import nn

import pyrannc


def wrapped(kind, between=lambda: None):
    inner = nn.Linear(4, 2)
    optimizer = kind(inner.parameters(), lr=0.1)
    between()
    config = pyrannc.Config(calibrate=False, self_check=False, partition_num=1)
    model = pyrannc.RaNNCModule(inner, optimizer, config)
    model(torch.ones(4, 4)).sum().backward()
    return model, optimizer


def kind_of_its_own():
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        def step(self, closure=None):
            return closure and closure()

    return Own


def test_schedulers_and_wrappers_of_a_step_keep_its_scopes():
    kind = kind_of_its_own()
    model, optimizer = wrapped(kind)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # holds the class's function
    own = kind.step
    kind.step = functools.wraps(own)(lambda *args, **kwargs: own(*args, **kwargs))
    began = []
    steps = model._deployment.steps
    optimizer.step(lambda: began.append(steps._optimizer_begin))
    assert began[0] is not None and steps._optimizer_begin is None


def test_a_step_that_was_replaced_so_that_its_code_is_not_found_is_an_error():
    kind = kind_of_its_own()

    def replace():
        own = kind.step
        kind.step = lambda *args, **kwargs: own(*args, **kwargs)

    _, optimizer = wrapped(kind, replace)
    with pytest.raises(
        pyrannc.RaNNCError, match=r"step\(\) of the class Own was replaced.*"
    ) as error:
        optimizer.step()
    assert "functools.wraps()" in str(error.value)
