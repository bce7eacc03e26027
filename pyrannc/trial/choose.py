"""Which of several plans is the fastest, by running them.

The planner knows operators that were measured alone. In a stage they take up to a third less or
more, as other things are in the caches, and numbers of micro-batches differ by a few percent only.
"""

from pyrannc.trial import measured_runs

#: A plan is taken if its runs are shorter by more than this share. Less is within the noise of a
#: few runs.
#: tuned by: a safety margin above the noise of a few runs.
#: without it: plans would differ from start to start for nothing.
FASTER_BY = 0.02

#: Seconds of all runs of other arrangements together, and of other numbers of micro-batches.
#: tuned by: a deadline: what a first step may wait.
#: without it: the first step waits for the runs of every plan, minutes where a step takes seconds.
MOST_TRIAL_S = 6.0


def arrangements(plans, measured, run):
    """The fastest of plans of different arrangements, which are tried in their order. The planner's
    runs once more before another one is taken: a machine may be slower for a while than before.

    Args:
        plans: The planner's first.
        measured: What ``measured_runs.measure`` said of that one.
        run: Runs one of them and returns what ``measured_runs.measure`` says.

    Returns:
        The index of the fastest, and what was measured of each until there was no more time.
    """
    best, found, spent_s = 0, [measured], 0.0
    for plan in plans[1:]:
        shortest_ns = found[best].shortest_ns
        if spent_s + measured_runs.OF_ANOTHER_PLAN.expected_s(shortest_ns / 1e9) > MOST_TRIAL_S:
            break
        found.append(run(plan))
        spent_s += found[-1].all_ns / 1e9
        if found[-1].shortest_ns < (1 - FASTER_BY) * shortest_ns:
            best = len(found) - 1
    if best > 0:
        again = run(plans[0])
        if found[best].shortest_ns >= (1 - FASTER_BY) * again.shortest_ns:
            best, found[0] = 0, again
    return best, found


def micro_batches(planned, measured, others, run):
    """From the planner's number to smaller ones, as long as each is faster than the one before; to
    larger ones, if the first smaller one was not.

    Args:
        planned: The planner's number.
        measured: What ``measured_runs.measure`` said of it.
        others: Numbers that may be tried, ascending.
        run: Runs a number and returns what ``measured_runs.measure`` says; None when it cannot be.

    Returns:
        The fastest number, and what was measured, by number, in the order of the runs.
    """
    best, found, spent_s = planned, {planned: measured}, 0.0
    smaller = [count for count in reversed(others) if count < planned]
    larger = [count for count in others if count > planned]
    for way in (smaller, larger):
        for count in way:
            shortest_ns = found[best].shortest_ns
            if spent_s + measured_runs.OF_ANOTHER_PLAN.expected_s(shortest_ns / 1e9) > MOST_TRIAL_S:
                return best, found
            tried = run(count)
            if tried is None:
                break
            found[count] = tried
            spent_s += tried.all_ns / 1e9
            if tried.shortest_ns >= (1 - FASTER_BY) * shortest_ns:
                break
            best = count
        if best != planned:
            break
    return best, found
