"""Plans that settings of RaNNC 0.7 leave out."""

from types import SimpleNamespace

import pytest

from pyrannc import _C, InfeasibleError
from pyrannc.planning.allowed import MOST_RANKS, Allowed


def plan(counts, micro_batches=1, *, schedule="gpipe", interleave=1, iteration_ns=1, feasible=True):
    return SimpleNamespace(
        stages=[SimpleNamespace(ranks=[0] * count) for count in counts],
        micro_batches=micro_batches,
        schedule=schedule,
        interleave=interleave,
        iteration_ns=iteration_ns,
        feasible=feasible,
    )


class Search:
    """Takes ``times`` by the replicas of the stages; what is not there does not fit."""

    def __init__(self, times):
        self.times, self.asked = times, []

    def __call__(self, request):
        counts = tuple(request.force.replicas or [1] * request.force.stages)
        self.asked.append(counts)
        found = plan(counts, iteration_ns=self.times.get(counts, 0), feasible=counts in self.times)
        return SimpleNamespace(plan=found)


def request(rows=24, micro_batches=(1, 2, 4, 8), **force):
    force = _C.partition.Force(**force)
    return _C.partition.Request(
        rows,
        micro_batches=list(micro_batches),
        schedules=["gpipe", "interleaved"],
        max_interleave=4,
        force=force,
    )


def test_without_limits_nothing_is_asked():
    given, search = request(), Search({})
    assert Allowed().request(given, plan([3]), 3, search) is given and not search.asked


def test_the_best_plan_stays_where_it_is_allowed_and_its_neighbours_are_allowed_too():
    limits, search = Allowed(least_rows=3, powers_of_two=True), Search({})
    found = limits.request(request(), plan([2, 1], 4), 3, search)
    assert not search.asked
    assert (found.force.stages, found.force.replicas, found.force.schedule) == (2, [2, 1], "gpipe")
    assert found.micro_batches == [1, 2, 4]  # 8: 24 rows / 8 / 2 replicas is one row
    other = limits.request(
        request(), plan([1] * 4, schedule="interleaved", interleave=2), 2, search
    )
    assert (other.force.schedule, other.force.interleave) == ("interleaved", 2)


def test_else_the_fastest_of_all_that_are():
    search = Search({(3,): 1, (2, 1): 5, (1, 2): 4, (1, 1, 1): 6, (2,): 7, (1, 1): 8})
    found = Allowed(powers_of_two=True).request(request(), plan([3]), 3, search)
    assert found.force.replicas == [1, 2] and (3,) not in search.asked
    every = {(1,), (2,), (1, 1), (1, 2), (2, 1), (1, 1, 1)}
    assert set(search.asked) == every and len(search.asked) == len(every)


def test_shares_have_so_many_rows():
    search = Search({(1,): 9, (2,): 5, (3,): 1})
    found = Allowed(least_rows=12).request(request(), plan([3]), 3, search)
    assert found.force.replicas == [2] and found.micro_batches == [1]


def test_on_many_ranks_all_stages_are_alike():
    search = Search({(3,) * 3: 2, (4,) * 2: 3})
    ranks = MOST_RANKS + 1
    Allowed(powers_of_two=True).request(request(), plan([9]), ranks, search)
    assert all(len(set(counts)) == 1 and sum(counts) <= ranks for counts in search.asked)


def test_the_fewest_stages_that_fit():
    search = Search({(1, 1): 5, (1, 1, 1): 1})
    found = Allowed(fewest_stages=True).request(request(), plan([1, 1, 1]), 3, search)
    assert found.force.stages == 2 and search.asked == [(1,), (1, 1)]


def test_what_is_forced_stays_forced():
    search = Search({(2, 1): 5, (1, 2): 1})
    limits = Allowed(least_rows=10, fewest_stages=True)
    found = limits.request(request(replicas=[2, 1], stages=2), plan([2, 1], 4), 3, search)
    assert found.force.replicas == [2, 1] and found.micro_batches == [1]


def test_where_no_allowed_plan_fits_the_error_names_the_settings():
    with pytest.raises(InfeasibleError, match="min_pipeline_bs = 100, limit_dev_num_pot = False"):
        Allowed(least_rows=100).request(request(), plan([1]), 3, Search({(1,): 1}))
    given = request()
    assert Allowed(least_rows=100).request(given, plan([1], feasible=False), 3, None) is given
