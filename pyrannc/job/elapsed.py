"""Moments of a computation and the time between them: by the host's clock, or, on an accelerator,
by events among what it computes, as the host only issues that."""

import time

import torch

from pyrannc import _C


def now(device: torch.device, may_wait: bool = False):
    """This moment of the host; of an accelerator that at which it has done what was issued.

    Where the backend of the accelerator has no timed events, it is the host's, too: with
    ``may_wait`` after the accelerator has done that.
    """
    if device.type == "cpu":
        return time.perf_counter_ns()
    if not _C.runtime.backend_of(str(device)).timed_events:
        if may_wait:
            _C.runtime.wait_for(str(device))
        return time.perf_counter_ns()
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


def is_past(moment) -> bool:
    """Whether the time until ``moment`` is known without waiting."""
    return isinstance(moment, int) or moment.query()


def ns_between(begin, end) -> int:
    """The time from ``begin`` to ``end``, for which the host waits."""
    if isinstance(end, int):
        return end - begin
    end.synchronize()
    return max(round(begin.elapsed_time(end) * 1e6), 0)


class Spans:
    """The time of several spans together. Their ends are waited for only when it is asked for."""

    #: Spans whose end is looked for again when another one comes: each holds two events.
    #: tuned by: a bound on what is kept of the last steps.
    #: without it: events pile up in a loop that never asks for a time.
    MOST_OPEN = 64

    def __init__(self):
        self._ns = [0]  # [part]
        self._open = []  # (part, begin, end)

    def new_part(self) -> int:
        """Number of the part that what is added from here on belongs to."""
        self._ns.append(0)
        return len(self._ns) - 1

    def add(self, begin, end) -> None:
        self._open.append((len(self._ns) - 1, begin, end))
        while len(self._open) > self.MOST_OPEN and is_past(self._open[0][2]):
            self._close_first()

    def seconds(self, first_part: int = 0) -> float:
        """Of the part ``first_part`` and those after it."""
        while self._open:
            self._close_first()
        return sum(self._ns[first_part:]) / 1e9

    def _close_first(self):
        part, begin, end = self._open.pop(0)
        self._ns[part] += ns_between(begin, end)
