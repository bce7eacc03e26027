"""Which of several plans is the fastest, by running them.

The planner knows operators that were measured alone. In a stage they take up to a third less or
more, as other things are in the caches, and numbers of micro-batches differ by a few percent only.
"""

from pyrannc import calibrate

# A plan is taken if its runs are shorter by more than this share. Less is within the noise of a
# few runs, and plans would differ from start to start for nothing.
MARGIN = 0.02
# All runs of other shapes together, and of other numbers of micro-batches: the first step waits
# for them.
MOST_S = 6.0


def shapes(measured, others, run):
    """The fastest of the planner's plan and the best ones of other shapes, which are tried in their
    order.

    Args:
        measured: What ``calibrate.measure`` said of the planner's.
        others: How many others there are.
        run: Runs one of them, 0 being the first, and returns what ``calibrate.measure`` says.

    Returns:
        The fastest, -1 being the planner's, and what was measured, by this number, in the order of
        the runs.
    """
    best, found, spent_s = -1, {-1: measured}, 0.0
    for index in range(others):
        shortest_ns = found[best]["shortest_ns"]
        if spent_s + calibrate.ANOTHER.expected_s(shortest_ns / 1e9) > MOST_S:
            break
        found[index] = run(index)
        spent_s += found[index]["all_ns"] / 1e9
        if found[index]["shortest_ns"] < (1 - MARGIN) * shortest_ns:
            best = index
    return best, found


def micro_batches(planned, measured, others, run):
    """From the planner's number to smaller ones, as long as each is faster than the one before; to
    larger ones, if the first smaller one was not.

    Args:
        planned: The planner's number.
        measured: What ``calibrate.measure`` said of it.
        others: Numbers that may be tried, ascending.
        run: Runs a number and returns what ``calibrate.measure`` says; None when it cannot be.

    Returns:
        The fastest number, and what was measured, by number, in the order of the runs.
    """
    best, found, spent_s = planned, {planned: measured}, 0.0
    smaller = [count for count in reversed(others) if count < planned]
    larger = [count for count in others if count > planned]
    for way in (smaller, larger):
        for count in way:
            shortest_ns = found[best]["shortest_ns"]
            if spent_s + calibrate.ANOTHER.expected_s(shortest_ns / 1e9) > MOST_S:
                return best, found
            tried = run(count)
            if tried is None:
                break
            found[count] = tried
            spent_s += tried["all_ns"] / 1e9
            if tried["shortest_ns"] >= (1 - MARGIN) * shortest_ns:
                break
            best = count
        if best != planned:
            break
    return best, found
