"""The plans of one job: the best one, and others that may be worth a run beside it."""

from pyrannc import _C, progress
from pyrannc.errors import InfeasibleError
from pyrannc.planning.planner_inputs import named_by_settings

#: A plan of another arrangement that is slower by more than this share, by its operators, is not
#: worth a run.
#: tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model head_heavy` with limited memory:
#: two stages took 16 % less than six, and 4 % more by their operators.
#: without it: the limited GPT with a heavy head trains in 2,690 ms instead of 2,250.
SLOWER_BY = 0.25


class Planner:
    """Makes the plans of one job, on rank 0.

    Args:
        step: ``_C.predict.StepModel`` of the job.
        request: What :func:`planner_inputs.request` made.
        config: The settings, of which the planner takes what a request does not say.
        mixing: Why rows cannot be told apart, or nothing.
        sharing: The same request for plans whose replicas share the state of the optimizer, where
            the faster of both is wanted.
        held_bytes: What a rank with the whole model holds before the first step.
        of_ranks: Makes of a plan of groups one of their ranks; None where each rank is one.
    """

    def __init__(self, step, request, config, mixing, held_bytes, sharing=None, of_ranks=None):
        self.step = step
        self._of_ranks = of_ranks
        options = _C.partition.PlannerOptions(
            max_blocks=config.max_partition_num,
            one_replica=bool(mixing),
            progress=progress.advance_share,
        )
        allowed = _C.partition.Allowed(
            least_rows=config.min_pipeline_bs,
            powers_of_two=config.limit_dev_num_pot,
            fewest_stages=not config.dp_search_all,
        )
        with named_by_settings():
            self._candidates, self._sharing = (
                each and _C.partition.Candidates(step, each, options, allowed, held_bytes)
                for each in (request, sharing)
            )

    def plan(self):
        """The best one that fits; all others share the state of the optimizer as it does."""
        with named_by_settings():
            return self._plan()

    def plan_of_ranks(self):
        """The same as the ranks run it, groups of which may be what plan() takes for one."""
        return self._of_ranks(self.plan()) if self._of_ranks else self.plan()

    def _plan(self):
        if self._sharing is None:
            return self._candidates.best()
        try:
            alone = self._candidates.best()
        except InfeasibleError:
            alone = None
        shared = self._sharing.best() if alone is None or _has_replicas(alone) else None
        if shared is None or (alone is not None and alone.step.ns <= shared.step.ns):
            return alone
        self._candidates = self._sharing
        return shared

    def limit_memory(self, device_bytes):
        """From here on a plan may use only so much of a device; what plan() has found stays if it
        fits."""
        for candidates in filter(None, (self._candidates, self._sharing)):
            candidates.limit_memory(device_bytes)

    def with_micro_batches(self, plan, count):
        """What plan() would have returned, had the search found ``plan``, which plan() returned,
        with ``count`` micro-batches; None where that is not possible or does not fit."""
        return self._candidates.with_micro_batches(plan, count)

    def of_other_arrangements(self, plan) -> list:
        """Plans of other arrangements (stages, their replicas, schedule) that may be worth a run
        beside ``plan``, which plan() returned: the best of each, the fastest by operators first.

        Every rank has the whole model until one of them is taken, so there are none where that is
        too much for a run of ``plan``.
        """
        return self._candidates.of_other_arrangements(plan, SLOWER_BY)

    def other_micro_batches(self, plan) -> list[int]:
        """Numbers of micro-batches that may be worth a run, beside that of ``plan``."""
        return self._candidates.other_micro_batches(plan)


def _has_replicas(plan) -> bool:
    return any(len(stage.ranks) > 1 for stage in plan.stages)
