"""Plans that fit because not all that a rank holds is there at the same time.

Section 6 of docs/planner-files.md, by which the planner searches, adds the peaks of all kinds of
memory. What a step holds (``step_peak_bytes``) is less, by up to a fourth where a rank has many
stages. So where memory is tight, plans are searched with more of it than there is, and those are
taken that fit by what a step holds.
"""

import math
import time

#: How many times a rank's memory section 6 may add: more than it adds in vain.
#: tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model cnn` with limited memory.
#: without it: the CNN with 48.2 MiB takes 361 ms instead of 342.
MOST = 1.5

#: Where section 6 says that a plan does not fit, what a step holds has to be less than this share
#: of the limit: a rank that is late leaves a message or two more with the one before it.
#: tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model cnn` with limited memory: 4 % of 48
#: MiB.
#: without it: a step holds more than the limit when a rank is late.
TRUSTED = 0.96

#: Searches of one arrangement, each of which asks for less than the one before held too much; the
#: share of an arrangement's time by which a search of this arrangement alone may find less; and the
#: seconds after which no other search begins.
#: tuned by: no measurement is known.
#: without it: an arrangement is given up after one search that held too much; with more, the first
#: step waits longer.
TRIES, LARGEST_STEP = 6, 0.98
REACH = 0.05
MOST_S = 3.0


def is_tight(found, limit) -> bool:
    """Whether with more memory there may be a faster plan than that of ``found``."""
    # At most twice as much, such as half the micro-batches, is the next larger plan.
    return peak(found.plan) > limit / 2 or any(
        other.peak_bytes > limit for other in found.runners_up
    )


def fits(plan, limit) -> bool:
    """Whether a rank can hold what a step of the plan needs."""
    return step_peak(plan) <= (limit if peak(plan) <= limit else TRUSTED * limit)


def peak(plan):
    """By section 6, on the fullest rank."""
    return max(stage.predicted.peak_bytes for stage in plan.stages)


def step_peak(plan):
    return max(plan.step.peak_bytes)


def fastest(planned, arrangements, search, limit):
    """The fastest plan of these arrangements that fits; ``planned`` where none is faster.

    Args:
        planned: ``_C.partition.Found`` of a plan that fits, or None.
        arrangements: (``iteration_ns`` of a search among all arrangements, the arrangement) of
        each. search: ``search(arrangement, in_step)`` as for :func:`of_arrangement`. limit: Bytes
        of a rank.
    """
    best, end = planned, time.monotonic() + MOST_S
    for expected_ns, arrangement in sorted(arrangements, key=lambda each: each[0]):
        longest_ns = best.plan.iteration_ns if best else math.inf
        if expected_ns > (1 + REACH) * longest_ns or time.monotonic() > end:
            break
        best = of_arrangement(arrangement, search, limit, longest_ns, end) or best
    return best


def of_arrangement(arrangement, search, limit, longest_ns=math.inf, end=math.inf):
    """A plan of that arrangement that fits and takes less than ``longest_ns``; None where none was
    found.

    Args:
        search: ``search(arrangement, in_step)`` returns the ``_C.partition.Found`` of the fastest
        plan of
            that arrangement of which a step holds, by the search's own rough account, at most this
            share of the memory; None where there is none.
    """
    in_step = 1.0
    for _ in range(TRIES):
        found = search(arrangement, in_step)
        if not found or found.plan.iteration_ns >= longest_ns:
            return None
        if fits(found.plan, limit):
            return found
        if time.monotonic() > end:
            return None
        in_step *= min(TRUSTED * limit / step_peak(found.plan), LARGEST_STEP)
    return None
