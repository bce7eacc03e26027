"""The plans of one job: the best one, and others that may be worth a run beside it."""

import collections
import dataclasses
import functools
import time

from pyrannc import _C, log
from pyrannc.errors import InfeasibleError, PlanError

#: A plan of another arrangement that is slower by more than this share, by its operators, is not
#: worth a run.
#: tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model head_heavy` with limited memory:
#: two stages took 16 % less than six, and 4 % more by their operators.
#: without it: the limited GPT with a heavy head trains in 2,690 ms instead of 2,250.
SLOWER_BY = 0.25

#: Plans of other arrangements that run before the first step, and seconds to find them, after which
#: no other is searched for.
#: tuned by: no measurement is known.
#: without it: the first step waits longer for plans that are further behind.
MOST_SHAPES, MOST_PLANNING_S = 3, 2.0


@dataclasses.dataclass
class Planner:
    """Makes the plans of one job, on rank 0.

    Attributes:
        step: ``_C.predict.StepModel`` of the job.
        request: What :func:`planner_inputs.request` made.
        most_blocks: Of the search; 0: by the cluster.
        mixing: Why rows cannot be told apart, or nothing.
        held_bytes: What a rank with the whole model holds before the first step.
    """

    step: object
    request: object
    most_blocks: int
    mixing: str
    held_bytes: int

    def plan(self):
        """The best one that fits."""
        return self.best.plan

    @functools.cached_property
    def best(self):
        """The same as ``_C.partition.Found``."""
        found = self._search(self.request)
        try:
            if not found.plan.feasible:
                raise InfeasibleError(found.plan.reason)
            completed = self._completed(found)
        except PlanError:  # such as a share in which there is nothing to normalise
            fewer = self._fewer_than(found.plan.micro_batches)
            if not fewer:
                raise
            self.request = self.request.with_micro_batches(fewer)  # nor for any other plan
            return self.best
        return completed if self._fits(completed.plan) else self._fitting(completed)

    def _fewer_than(self, count) -> list[int]:
        return [fewer for fewer in self.request.micro_batches if fewer < count]

    def _options(self, **options):
        return _C.partition.PlannerOptions(
            max_blocks=self.most_blocks, one_replica=bool(self.mixing), **options
        )

    def _search(self, request, **options):
        return _C.partition.find_plan(
            self._accumulating, self.step.cluster, request, self._options(**options)
        )

    def _fitting(self, planned):
        """``_C.partition.Found`` of the fastest plan of which a rank can hold a step, where that
        is not so of ``planned``, which is the answer if none is.

        The account by which the search judges does not know the arrays in which gradients are
        summed over replicas, nor what the optimizer computes with.
        """
        arrangements = [(planned.plan.iteration_ns, _C.partition.arrangement_of(planned.plan))]
        arrangements += [
            (other.iteration_ns, other.arrangement)
            for other in planned.runners_up
            if other.peak_bytes <= self._limit
        ]
        best = None
        for expected_ns, arrangement in sorted(arrangements, key=lambda each: each[0]):
            if best and expected_ns >= best.plan.iteration_ns:
                break
            found = self._of_arrangement(planned, arrangement, self.request)
            if found and (not best or found.plan.iteration_ns < best.plan.iteration_ns):
                best = found
        return best or planned

    def with_micro_batches(self, plan, count):
        """What plan() would have returned, had the search found ``plan``, which plan() returned,
        with ``count`` micro-batches; None where that is not possible or does not fit."""
        changed = _C.partition.with_micro_batches(
            self._accumulating, self.step.cluster, self.request, plan, count
        )
        if not changed.feasible:
            return None
        try:
            changed = _C.partition.completed(self.step, changed)
        except PlanError:  # such as a share in which there is nothing to normalise
            return None
        return changed if self._fits(changed) else None

    def of_other_arrangements(self, plan) -> list:
        """Plans of other arrangements (stages, their replicas, schedule) that may be worth a run
        beside ``plan``, which plan() returned: the best of each, the fastest by operators first.

        Every rank has the whole model until one of them is taken, so there are none where that is
        too much for a run of ``plan``.
        """
        if not self._fits_beside_model(plan):
            return []
        planned = _C.partition.Found(plan, self.best.runners_up)
        plans, end = [], time.monotonic() + MOST_PLANNING_S
        arrangements = {_key(_C.partition.arrangement_of(plan))}
        fewer = self._fewer_micro_batches(planned) if self._is_tight(planned) else None
        if fewer:
            plans.append(fewer)
            arrangements.add(_key(_C.partition.arrangement_of(fewer)))
        for other in planned.runners_up:
            if _key(other.arrangement) in arrangements:
                continue
            if other.iteration_ns > (1 + SLOWER_BY) * plan.iteration_ns:
                break
            if len(plans) == MOST_SHAPES or time.monotonic() > end:
                break
            arrangements.add(_key(other.arrangement))
            best = self._best_of_arrangement(planned, other.arrangement)
            if best:
                plans.append(best)
        return plans

    def _fewer_micro_batches(self, planned):
        """The best plan with fewer micro-batches than that of ``planned``, which may have so many
        because memory demands it, for a run beside it; None where there is none."""
        fewer = self._fewer_than(planned.plan.micro_batches)
        if not fewer:
            return None
        request = self.request.with_micro_batches(fewer)
        other = self._search(request, exactly=False)
        if not other.plan.feasible:
            return None
        arrangement = _C.partition.arrangement_of(other.plan)
        found = self._of_arrangement(planned, arrangement, request)
        return found.plan if found and self._fits_beside_model(found.plan) else None

    def _best_of_arrangement(self, planned, arrangement):
        """The best plan of ``arrangement`` that fits, for a run beside that of ``planned``; None
        where there is none."""
        replicas = [len(stage.ranks) for stage in planned.plan.stages]
        least = min(2, self._fewest_rows(replicas, planned.plan.micro_batches))
        counts = [
            count
            for count in self.request.micro_batches
            if self._fewest_rows(arrangement.replicas, count) >= least
        ]
        if not counts:
            return None
        layout = "+".join(map(str, arrangement.replicas))
        log.info(
            "deploy",
            f"a plan with replicas {layout}, schedule {arrangement.schedule}, to run it, too",
        )
        request = self.request.with_micro_batches(counts)
        found = self._of_arrangement(planned, arrangement, request)
        return found.plan if found and self._fits_beside_model(found.plan) else None

    def _of_arrangement(self, planned, arrangement, request):
        """``_C.partition.Found`` of the best plan of ``arrangement`` of which a rank can hold a
        step; None where there is none."""
        while True:
            try:
                found = _C.partition.plan_of_arrangement(
                    self._accumulating,
                    self.step.cluster,
                    request,
                    self._options(exactly=False),
                    planned,
                    arrangement,
                )
                if not found.plan.feasible:
                    return None
                found = self._completed(found)
            except PlanError:
                return None
            if self._fits(found.plan):
                return found
            # As much less as its step holds too much, by the account: not this plan again.
            most = _peak(found.plan) * self._limit / max(found.plan.step.peak_bytes)
            request = request.with_memory_margin(1 - most / self.step.cluster.device_memory_bytes)

    def _fits(self, plan) -> bool:
        """Whether a rank can hold what a step of the plan needs."""
        return max(plan.step.peak_bytes) <= self._limit

    def _is_tight(self, found) -> bool:
        """Whether with more memory there may be a faster plan than that of ``found``."""
        # At most twice as much, such as half the micro-batches, is the next larger plan.
        return _peak(found.plan) > self._limit / 2 or any(
            other.peak_bytes > self._limit for other in found.runners_up
        )

    def _fits_beside_model(self, plan) -> bool:
        """Whether a rank has memory for a run of the plan beside all that it holds before the first
        step. A run makes no state of the optimizer."""
        needed = collections.defaultdict(float)
        peaks = {}
        for stage, peak in zip(plan.stages, plan.step.peak_bytes, strict=True):
            state = stage.predicted.optimizer_bytes + stage.predicted.param_bytes
            for rank in stage.ranks:
                needed[rank] -= state
                peaks[rank] = peak  # of all its stages
        return all(
            peak + needed[rank] + self.held_bytes <= self._limit for rank, peak in peaks.items()
        )

    @property
    def _limit(self):
        """Bytes that a plan may take on a rank."""
        return self.step.cluster.device_memory_bytes * (1 - self.request.memory_margin)

    def other_micro_batches(self, plan) -> list[int]:
        """Numbers of micro-batches that may be worth a run, beside that of ``plan``."""

        def may_be(count):
            if count <= plan.micro_batches:
                return count < plan.micro_batches
            # More fill a pipeline, and of one stage there is none.
            replicas = [len(stage.ranks) for stage in plan.stages]
            return len(replicas) > 1 and self._fewest_rows(replicas, count) > 1

        return [count for count in self.request.micro_batches if may_be(count)]

    def _fewest_rows(self, replicas, micro_batches) -> int:
        """In the smallest share. Where it is one, operators may compute in another way: batch
        normalisation refuses it."""
        return self.request.global_batch // micro_batches // max(replicas)

    @functools.cached_property
    def _accumulating(self):
        """With what the step's own prediction adds to each micro-batch but the first."""
        return _C.cost.with_accumulation(self.step.profile, self.step.costs.accumulate_ns_per_byte)

    def _completed(self, found):
        plan = _C.partition.completed(self.step, found.plan)
        return _C.partition.Found(plan, found.runners_up)


def _key(arrangement):
    return tuple(arrangement.replicas), arrangement.schedule, arrangement.interleave


def _peak(plan):
    """By the account, on the fullest rank."""
    return max(stage.predicted.peak_bytes for stage in plan.stages)
