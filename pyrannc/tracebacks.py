"""Tracebacks as users are shown them: with frames of code that is neither RaNNC's nor torch's."""

import contextlib
import os
from pathlib import Path
from types import TracebackType

import torch

from pyrannc import _C

#: With "full" nothing is left out.
VARIABLE = "RANNC_TRACEBACK"

_OURS = f"{Path(__file__).parent}{os.sep}"
_OTHERS = (f"{Path(torch.__file__).parent}{os.sep}", contextlib.__file__)


def leave_out_others(error) -> int:
    """Takes the other frames out of the tracebacks of ``error`` and of what has led to it; returns
    how many.

    An error that users can mend says all in its text: what has led to it is left out, and frames of
    the user's in there, such as those of forward(), come last. An exception of another kind that
    RaNNC's own code has raised stays as it is: it is a fault of ours.
    """
    if os.environ.get(VARIABLE) == "full":
        return 0
    before = sum(len(_frames(each)) for each in _chain(error))
    if isinstance(error, _C.util.RaNNCError):
        own = {(id(at.tb_frame), at.tb_lineno): at for e in _chain(error) for at in _frames(e)}
        _put(error, own.values())
        error.__cause__, error.__suppress_context__ = None, True
    else:
        for each in _chain(error):
            frames = _frames(each)
            if not frames or not _file(frames[-1]).startswith(_OURS):
                _put(each, frames)
    return before - sum(len(_frames(each)) for each in _chain(error))


def _chain(error) -> list:
    """As Python shows it: the error, and those before it."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)
    return found


def _frames(error) -> list:
    found, at = [], error.__traceback__
    while at is not None:
        found.append(at)
        at = at.tb_next
    return found


def _put(error, frames):
    own = [each for each in frames if not _file(each).startswith((_OURS, *_OTHERS))]
    trace = None
    for each in reversed(own):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    if trace is not None:
        error.__traceback__ = trace


def _file(at) -> str:
    return at.tb_frame.f_code.co_filename
