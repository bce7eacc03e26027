"""What forward() would do in later calls, after what the first has changed in Python."""

import gc

from pyrannc import _C, log
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.attributes.around import ABSENT
from pyrannc.errors import TraceError

#: What a counter of calls is set to for a trace: beyond any warm-up, and, as forward() may look at
#: it before it counts or after, a number that every usual period divides, and the one before.
#: tuned by: warm-ups of 500 calls and periods of 30 and 100, which tests have.
#: without it: what a model does after a warm-up, or in every hundredth call, is never done.
_LATER_CALLS = (50_400_000, 50_399_999)


def look(model, before, trace, run) -> tuple:
    """What a call that has been traced has changed, and traces of later calls, which have to be as
    the first: of a second one, and, where it changes counters of calls, of much later ones.

    What a second call finds and leaves, as masks that are made once, is taken back, and no change.

    Args:
        before: The snapshot of before the call.
        trace: Traces another call.
        run: Calls the model without tracing it.

    Raises:
        TraceError: A later call computes with a tensor that the one before it has left.
    """
    changes = module_attributes.changed(before, model)
    if module_attributes.are_plain(changes):
        # A module that the first call has put into the model has no path in the second, either.
        traces = [trace()]
        later = module_attributes.changed(before, model)
        counters = module_attributes.counters(changes, later)
        for count in _LATER_CALLS if counters else ():
            module_attributes.put(model, dict.fromkeys(counters, count))
            try:
                traces.append(trace())
            except TraceError as error:
                raise _computes_otherwise(counters) from error
        return changes, traces
    left = module_attributes.tensors_left(changes)
    if not left:
        return changes, []
    after, failed = module_attributes.snapshot(model), False
    try:
        run()
    except Exception as error:  # as the model's own may: nothing is known of another call
        log.debug("frontend", f"a second call fails: {error}")
        failed = True
    if failed:
        gc.collect()  # errors refer to themselves, and to parameters that a rank may release
        return changes, []
    made = left.keys() - module_attributes.changed(after, model).keys()
    module_attributes.put(model, {path: before.get(path, ABSENT) for path in made})
    changes = {path: value for path, value in changes.items() if path not in made}
    if made == left.keys():
        return changes, []
    try:
        return changes, [trace()]
    except TraceError as error:
        raise _computes_otherwise(left.keys() - made) from error


def refuse_another(traces, changes):
    """``traces``: the last one is of a second call, after ``changes``."""
    try:
        _C.frontend.join(traces)
        return
    except TraceError as error:
        difference = error
    raise _computes_otherwise(changes) from difference


def _computes_otherwise(changes) -> TraceError:
    names = ", ".join(f"'{path}'" for path in list(changes)[:3])
    return TraceError(
        "forward() changes attributes of the model, with which the next call, or a later one, "
        f"would compute something else: {names}. A captured model computes the same in every "
        "call.\n  Keep a number that changes in a buffer, or pass it as a tensor; a state that one "
        "call hands to the next goes in as an argument and out beside the result. If something is "
        "done in the first call only, call the model once before you wrap it."
    )
