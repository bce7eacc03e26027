"""The plans of one job: the best one, and others that may be worth a run beside it."""

import collections
import dataclasses
import functools
import time

from pyrannc import _C, log
from pyrannc.errors import InfeasibleError, PlanError
from pyrannc.planning import tight_memory

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
            completed = self._completed(found) if found.plan.feasible else None
        except PlanError:  # such as a share in which there is nothing to normalise
            fewer = self._fewer_than(found.plan.micro_batches)
            if not fewer:
                raise
            self.request = self.request.with_micro_batches(fewer)  # nor for any other plan
            return self.best
        if completed is None or tight_memory.is_tight(completed, self._limit):
            completed = self._with_room(completed, self.request)
        if completed is None:
            raise InfeasibleError(found.plan.reason)
        return completed

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

    def _with_room(self, planned, request, found=None):
        """``_C.partition.Found`` of the fastest plan for ``request`` that fits by what a step
        holds; ``planned``, that of one or None, where none is faster.

        ``found``: that of which the notes tell the search; by default the one that this needs.
        """
        room = _C.partition.Room(added=tight_memory.MOST)
        roomy = self._search(request, room=room, exactly=False)
        if not roomy.plan.feasible:
            return planned
        arrangements = {
            _key(other.arrangement): (other.iteration_ns, other.arrangement)
            for other in roomy.runners_up
        }
        arrangement = _C.partition.arrangement_of(roomy.plan)
        arrangements[_key(arrangement)] = (roomy.plan.iteration_ns, arrangement)
        fitting = planned if planned and tight_memory.fits(planned.plan, self._limit) else None
        best = tight_memory.fastest(
            fitting,
            arrangements.values(),
            lambda arrangement, in_step: self._of_arrangement(
                found or roomy, arrangement, request, in_step
            ),
            self._limit,
        )
        return best or planned

    def with_micro_batches(self, plan, count):
        """What plan() would have returned, had the search found ``plan``, which plan() returned,
        with ``count`` micro-batches; None where that is not possible or does not fit."""
        changed = _C.partition.with_micro_batches(
            self._accumulating, self.step.cluster, self.request, plan, count, tight_memory.MOST
        )
        if not changed.feasible:
            return None
        try:
            changed = _C.partition.completed(self.step, changed)
        except PlanError:  # such as a share in which there is nothing to normalise
            return None
        return changed if tight_memory.fits(changed, self._limit) else None

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
        fewer = (
            self._fewer_micro_batches(planned)
            if tight_memory.is_tight(planned, self._limit)
            else None
        )
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
            best = self._best_of_arrangement(planned, other.arrangement, end)
            if best:
                plans.append(best)
        return plans

    def _fewer_micro_batches(self, planned):
        """The best plan with fewer micro-batches than that of ``planned``, which may have so many
        because memory demands it, for a run beside it; None where there is none."""
        fewer = self._fewer_than(planned.plan.micro_batches)
        if not fewer:
            return None
        found = self._with_room(None, self.request.with_micro_batches(fewer), planned)
        return found.plan if found and self._fits_beside_model(found.plan) else None

    def _best_of_arrangement(self, planned, arrangement, end):
        """The best plan of ``arrangement`` that fits, for a run beside that of ``planned``; None
        where none was found until ``end``."""
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
        found = tight_memory.of_arrangement(
            arrangement,
            lambda arrangement, in_step: self._of_arrangement(
                planned, arrangement, request, in_step
            ),
            self._limit,
            end=end,
        )
        return found.plan if found and self._fits_beside_model(found.plan) else None

    def _of_arrangement(self, planned, arrangement, request, in_step):
        """``_C.partition.Found`` of the best plan of ``arrangement`` where ``in_step`` of the
        memory is for what a step holds; None where there is none."""
        room = _C.partition.Room(
            added=tight_memory.MOST,
            in_step=in_step,
            step=self.step,
            step_limit_bytes=tight_memory.TRUSTED * self._limit,
        )
        try:
            found = _C.partition.plan_of_arrangement(
                self._accumulating,
                self.step.cluster,
                request,
                self._options(room=room, exactly=False),
                planned,
                arrangement,
            )
            return self._completed(found) if found.plan.feasible else None
        except PlanError:
            return None

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
