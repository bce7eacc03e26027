"""What of a traceback is shown of an exception that ends a rank."""

import sys
import traceback

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import tracebacks


class Branches(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(4, 4), then

    def forward(self, x):
        return self.then(self.layer(x))


def error_of(work):
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("no error")


def functions(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def call(then):
    model = pyrannc.RaNNCModule(Branches(then), config=pyrannc.Config(calibrate=False))
    model(torch.ones(4, 4))


def positive(h):
    return h if h.sum() > 0 else -h


def test_of_an_error_that_users_can_mend_their_own_frames_stay():
    error = error_of(lambda: call(positive))
    before = "".join(traceback.format_exception(error))
    assert tracebacks.leave_out_others(error) > 20
    assert functions(error) == ["error_of", "<lambda>", "call", "forward", "positive"]
    text = "".join(traceback.format_exception(error))
    assert "another exception" in before and "another exception" not in text
    assert "if h.sum() > 0" in text and "pyrannc/" not in text.replace(__file__, "")


def test_an_error_of_the_users_own_keeps_what_led_to_it():
    def fails():
        try:
            torch.ones(2) @ torch.ones(3)
        except RuntimeError as error:
            raise ValueError("two and three") from error

    error = error_of(lambda: nn.Module.apply(nn.Linear(1, 1), lambda _: fails()))
    assert tracebacks.leave_out_others(error) == 1  # apply() of torch
    assert functions(error) == ["error_of", "<lambda>", "<lambda>", "fails"]
    assert functions(error.__cause__) == ["fails"]


def test_a_fault_of_ours_and_full_leave_nothing_out(monkeypatch):
    error = error_of(lambda: tracebacks.leave_out_others(3))  # no exception
    assert tracebacks.leave_out_others(error) == 0 and functions(error)[-1] != "<lambda>"
    monkeypatch.setenv("RANNC_TRACEBACK", "full")
    error = error_of(lambda: call(positive))
    assert tracebacks.leave_out_others(error) == 0 and "_deploy" in functions(error)
    assert pyrannc.Config() is not None  # the variable is no setting


@pytest.mark.parametrize("cause", [None, ValueError("before")])
def test_without_a_frame_of_the_users_the_traceback_stays(cause):
    error = pyrannc.RaNNCError("of no code")
    error.__cause__ = cause
    assert tracebacks.leave_out_others(error) == 0
    assert sys.exc_info() == (None, None, None)
