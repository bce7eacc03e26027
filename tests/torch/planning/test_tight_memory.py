"""Plans that the planner's sum of all peaks forbids, and that fit."""

from types import SimpleNamespace

import pytest

from pyrannc.planning import tight_memory

LIMIT = 100


def plan(iteration_ns, peak, step_peak, *, others=()):
    """As ``_C.partition.Found``."""
    stage = SimpleNamespace(predicted=SimpleNamespace(peak_bytes=peak))
    return SimpleNamespace(
        plan=SimpleNamespace(
            iteration_ns=iteration_ns,
            stages=[stage],
            step=SimpleNamespace(peak_bytes=[step_peak]),
        ),
        runners_up=[SimpleNamespace(peak_bytes=other) for other in others],
    )


def test_memory_is_tight_where_twice_the_plan_or_another_one_does_not_fit():
    assert not tight_memory.is_tight(plan(1, 50, 50), LIMIT)
    assert tight_memory.is_tight(plan(1, 51, 51), LIMIT)
    assert not tight_memory.is_tight(plan(1, 10, 10, others=[100]), LIMIT)
    assert tight_memory.is_tight(plan(1, 10, 10, others=[20, 101]), LIMIT)


def searches(plans, *, limit=LIMIT, **rest):
    """``plans``: what the searches of the arrangement find, one after the other."""
    asked, left = [], iter(plans)

    def search(arrangement, in_step):
        assert arrangement == "some"
        asked.append(in_step)
        return next(left)

    return tight_memory.of_arrangement("some", search, limit, **rest), asked


def test_each_search_leaves_as_much_less_as_the_one_before_held_too_much():
    fits = plan(3, 130, 96)
    found, asked = searches([plan(1, 150, 120), plan(2, 140, 96.5), fits])
    assert found is fits
    assert asked == pytest.approx([1, 0.96 / 1.2, 0.96 / 1.2 * 0.98])


def test_a_search_ends_where_there_is_no_plan_or_only_slow_ones():
    assert searches([None]) == (None, [1])
    assert searches([plan(5, 150, 90)], longest_ns=5) == (None, [1])
    large = plan(1, 150, 120)
    assert searches([large], end=0) == (None, [1])  # no time is left
    found, asked = searches([large] * 10)
    assert found is None and len(asked) == tight_memory.TRIES


def fastest(planned, found):
    """``found``: iteration_ns of an arrangement, and what the search for it finds."""
    arrangements = [(ns, f"of {ns}") for ns in found]
    asked = []

    def search(arrangement, in_step):
        asked.append(int(arrangement.removeprefix("of ")))
        return found[asked[-1]]

    return tight_memory.fastest(planned, arrangements, search, LIMIT), asked


def test_the_fastest_shape_is_taken_of_those_that_may_be_faster():
    planned = plan(100, 90, 80)
    better, best = plan(98, 120, 95), plan(95, 120, 95)
    # What was found among all arrangements may be better by itself, by up to 5 %.
    assert fastest(planned, {104: best, 101: better, 106: best}) == (better, [101])
    assert fastest(planned, {104: best, 101: None, 106: best}) == (best, [101, 104])
    assert fastest(planned, {99: plan(100, 120, 95), 106: best}) == (planned, [99])
    assert fastest(None, {500: best}) == (best, [500])
    assert fastest(None, {500: None}) == (None, [500])
