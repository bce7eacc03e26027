"""Audits: a call is captured once more, and the graph is compared with the one that runs.

Guards know what they compare. An audit finds any other change in Python between calls: globals of
libraries, the environment, context variables, functions that were swapped.
"""

import contextlib
import itertools
import time

from pyrannc.capture.attributes.module_attributes import copied, places_of
from pyrannc.errors import RaNNCError, TraceError
from pyrannc.ranks import on_all

#: The share of the time since the first call that audits may take, beside the second call of each
#: kind.
#: tuned by: what nobody notices.
#: without it: a change that no guard sees would be found after the second call of a kind only when
#: a script asks, or every call would take as long as a capture.
MOST_SHARE = 0.01


#: Calls of a kind that are audited whatever it costs, counted from 0.
#: tuned by: scripts of a few steps, which change something at the second to fifth.
#: without it: what a short run computes after a change that no guard sees would not be found.
EARLY = (1, 3, 7)


class Audits:
    """The audits of one deployment, and what they have cost.

    Args:
        wanted: ``Config.audit``.
    """

    def __init__(self, world, wanted):
        self._world, self._is_wanted = world, wanted == "auto"
        self._begin = time.monotonic()
        self.count, self.seconds = 0, 0.0
        self.pauses = False

    @contextlib.contextmanager
    def paused(self):
        """Inside no call is audited: generate() calls a model once for each token."""
        before, self.pauses = self.pauses, True
        try:
            yield
        finally:
            self.pauses = before

    def is_due(self) -> bool:
        """On rank 0, whether the next call is audited, whatever its kind."""
        share = MOST_SHARE * (time.monotonic() - self._begin)
        return self._is_wanted and not self.pauses and self.seconds < share

    def is_wanted(self, calls, is_due) -> bool:
        """Whether a call is audited; the same on all ranks.

        Args:
            calls: Of the same kind, before this one.
            is_due: What rank 0 has said.
        """
        return self._is_wanted and not self.pauses and (calls in EARLY or (calls > 1 and is_due))

    def run(self, captured, capture, keyed_draws, sound) -> None:
        """Captures a call anew, by ``capture()``, and compares. Collective.

        Args:
            captured: What runs.
            keyed_draws: See ``Reference.match``.
            sound: Number of the last forward pass of this kind that is known to be right.

        Raises:
            RaNNCError: Another graph than ``captured``, on any rank; on every rank.
        """
        begin = time.monotonic()
        own_order = self._world.rank == 0

        def difference():
            try:
                now = capture().reference()
            except TraceError as error:
                return f"\n  It cannot be captured any more: {error}"
            return _difference(captured.reference(), now, keyed_draws, own_order)

        found = on_all(self._world, difference)
        self.count += 1
        self.seconds += time.monotonic() - begin
        for rank, text in enumerate(found):
            if text:
                where = f" on rank {rank}" if self._world.size > 1 else ""
                raise RaNNCError(
                    f"forward() no longer computes{where} what was captured: something that it "
                    f"reads has changed, which is not compared before each call.{text}\n"
                    f"  Calls like this one are right up to forward pass {sound}; the results of "
                    "those after it are in doubt.\n  Pass what changes as an argument, or keep it "
                    "in a plain attribute of a module. Random numbers of Python or numpy, clocks "
                    "and files give each call of forward() something else: read them outside. "
                    "Config(audit='off') leaves this check out."
                )

    def record(self) -> dict:
        """What audits have cost on this rank, for the records of steps."""
        return {"audits": self.count, "audit_ns": round(1e9 * self.seconds)}


class ChangedAttributes:
    """The attributes that forward() changes, as they were at a capture: the graph goes on with what
    they held, and the model may run its own Python in between."""

    def __init__(self, model, captured):
        paths = captured.changed_attributes
        places = places_of(model, paths).values() if paths else ()
        self._before = [(place, copied(place.read())) for place in places]

    @contextlib.contextmanager
    def as_captured(self):
        """Inside, they are so again."""
        now = [(place, place.read()) for place, _ in self._before]
        for place, value in self._before:
            place.write(copied(value))
        try:
            yield
        finally:
            for place, value in now:
                place.write(value)


def _difference(then, now, keyed_draws, own_order) -> str:
    """What differs between two references, in words; empty where they compute the same.

    Args:
        own_order: Both have the order of this rank's model, so the first line that differs says
            it best.
    """
    found = then.match(now, keyed_draws).difference
    if not found:
        return ""
    lines = itertools.zip_longest(
        _nodes(then.graph) if own_order else (), _nodes(now.graph) if own_order else ()
    )
    pair = next((pair for pair in lines if pair[0] != pair[1]), None)
    if pair is None:
        return f"\n  {found}"
    return f"\n  then: {pair[0] or 'the end'}\n  now:  {pair[1] or 'the end'}"


def _nodes(graph):
    lines = map(str.strip, graph.text().splitlines())
    return [line for line in lines if line.startswith("node ")]
