"""What forward() would do in later calls, after what the first has changed in Python."""

import gc

from pyrannc import log
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.attributes.around import ABSENT
from pyrannc.capture.values.logged_numbers import StaleNumber
from pyrannc.errors import TraceError, shown_as

#: What a counter of calls is set to for a trace: beyond any warm-up, and, as forward() may look at
#: it before it counts or after, a number that every usual period divides, and the one before.
#: tuned by: warm-ups of 500 calls and periods of 30 and 100, which tests have.
#: without it: what a model does after a warm-up, or in every hundredth call, is never done.
_LATER_CALLS = (50_400_000, 50_399_999)


@shown_as(TraceError)
class LaterCallsDiffer(TraceError):
    """A later call would compute something else than the one that was captured."""


def look(model, before, trace, follow) -> tuple:
    """What a call that has been traced has changed, and traces of later calls, which have to be as
    the first: of a second one, and, where it changes counters of calls, of much later ones.

    What is made once, as masks are, is taken back, and no change.

    Args:
        before: The snapshot of before the call.
        trace: Captures another call.
        follow: Calls the model without tracing it, and returns an
            :class:`~pyrannc.capture.values.of_one_call.OfOneCall` of that and what has led to
            the result.

    Raises:
        LaterCallsDiffer: A later call computes with a tensor that the one before it has left.
    """
    changes = module_attributes.changed(before, model)
    left = module_attributes.tensors_left(changes)
    if left:
        once = _done_once(model, before, changes, left, follow)
        if once is None:
            return changes, []
        changes = {path: value for path, value in changes.items() if path not in once}
        left = left.keys() & changes.keys()
    if not left and not module_attributes.are_plain(changes):
        return changes, []
    # A module that the first call has put into the model has no path in the second, either.
    traces, now = [_traced(trace, left)], module_attributes.changed(before, model)
    counters = module_attributes.counters(changes, now)
    for count in _LATER_CALLS if counters else ():
        module_attributes.put(model, dict.fromkeys(counters, count))
        traces.append(_traced(trace, counters))
    return changes, traces


def _traced(trace, changes):
    """``changes``: with which alone another call may fail where the first has not."""
    try:
        return trace()
    except TraceError as error:
        if not changes or isinstance(error, StaleNumber):
            raise
        raise computes_otherwise(changes) from error


def _done_once(model, before, changes, left, follow):
    """The paths of what the second call finds done and leaves so; they are taken back. None where
    the second call fails.

    What is made once must be of sizes alone. A tensor of the first batch, of weights before they
    were trained, or of random numbers would be another one in each call of the graph.
    """
    after = module_attributes.snapshot(model)
    second = _followed(follow)
    if second is None:
        return None
    once = changes.keys() - module_attributes.changed(after, model).keys()
    made = left.keys() & once
    if not made:
        return frozenset()
    _take_back(model, before, changes)
    first = _followed(follow)
    if first is None:
        return None
    of_call, operators = first
    found = module_attributes.snapshot(model)
    if any(map(of_call.holds, (found.get(path) for path in made))):
        return frozenset()  # a trace of the second call tells whether it computes with them
    if operators != second[1]:
        raise computes_otherwise(once)
    _take_back(model, before, once)
    return once


def _followed(follow):
    try:
        return follow()
    except StaleNumber:
        raise
    except Exception as error:  # as the model's own may: nothing is known of another call
        log.debug("frontend", f"another call fails: {error}")
    gc.collect()  # errors refer to themselves, and to parameters that a rank may release
    return None


def _take_back(model, before, paths):
    module_attributes.put(model, {path: before.get(path, ABSENT) for path in paths})


def _listed(changes):
    return ", ".join(f"'{path}'" for path in list(changes)[:3])


def computes_otherwise(changes) -> LaterCallsDiffer:
    """The error of a model of which another call, after ``changes``, was captured otherwise."""
    return LaterCallsDiffer(
        "forward() changes attributes of the model, with which the next call, or a later one, "
        f"would compute something else: {_listed(changes)}. A captured model computes the same in "
        "every call.\n  Keep a number that changes in a buffer, or pass it as a tensor; a state "
        "that one call hands to the next goes in as an argument and out beside the result. If "
        "something is done in the first call only, call the model once before you wrap it. What it "
        "prints or keeps for a log in some calls only, the training loop does."
    )
