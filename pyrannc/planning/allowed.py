"""Which plans the settings of RaNNC 0.7 allow: sizes of shares, numbers of replicas and stages."""

import dataclasses

from pyrannc import _C
from pyrannc.errors import ConfigError, InfeasibleError

#: On more ranks only equal numbers of replicas are looked at, where not all are allowed.
#: tuned by: no measurement is known.
#: without it: the ways to share out ranks double with each rank, and each is a search.
MOST_RANKS = 8


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What every stage of a plan must have.

    Attributes:
        least_rows: Of a replica in a micro-batch.
        powers_of_two: Whether its replicas are a power of two.
        fewest_stages: Whether the plan has the fewest stages with which any fits.
    """

    least_rows: int = 1
    powers_of_two: bool = False
    fewest_stages: bool = False

    def request(self, request, plan, ranks, search):
        """``request``, or one with which the search finds nothing that is not allowed.

        Args:
            plan: What the search has found for ``request``: if it is allowed, it is the best, and
                others of its arrangement are all that is looked at from here on.
            ranks: Of the cluster.
            search: Gives ``_C.partition.Found`` for a request.

        Raises:
            InfeasibleError: No plan that is allowed fits.
        """
        if self == Allowed() or not plan.feasible:
            return request
        if not self.fewest_stages and self._allows(plan, request):
            return self._as(request, plan)
        numbers = range(1, ranks + 1) if self.fewest_stages else [None]
        for stages in [request.force.stages] if request.force.stages else numbers:
            best = self._best(request, ranks, stages, search)
            if best is not None:
                return best
        raise InfeasibleError(
            f"no plan fits with min_pipeline_bs = {self.least_rows}, limit_dev_num_pot = "
            f"{self.powers_of_two} and dp_search_all = {not self.fewest_stages}"
        )

    def _as(self, request, plan):
        counts = [len(stage.ranks) for stage in plan.stages]
        interleave = {"interleave": plan.interleave} if plan.schedule == "interleaved" else {}
        return _forced(
            request,
            self._numbers(request, counts),
            stages=len(counts),
            replicas=counts,
            schedule=plan.schedule,
            **interleave,
        )

    def _numbers(self, request, counts) -> list[int]:
        """Of micro-batches that are allowed with so many replicas."""
        return [
            number
            for number in request.micro_batches
            if self._has_rows(request.global_batch, counts, number)
        ]

    def _best(self, request, ranks, stages, search):
        """The request of the fastest plan with so many stages (None: any number) that fits."""
        if self.least_rows == 1 and not self.powers_of_two:
            return _feasible(_forced(request, request.micro_batches, stages=stages), search)[1]
        forced = request.force.replicas
        layouts = [tuple(forced)] if forced else _layouts(ranks, stages)
        found = []
        for counts in filter(self._allows_counts, layouts):
            if numbers := self._numbers(request, counts):
                other = _forced(request, numbers, stages=len(counts), replicas=list(counts))
                found.append(_feasible(other, search))
        fits = [each for each in found if each[1] is not None]
        return min(fits, key=lambda each: each[0])[1] if fits else None

    def _allows(self, plan, request) -> bool:
        counts = [len(stage.ranks) for stage in plan.stages]
        return self._allows_counts(counts) and self._has_rows(
            request.global_batch, counts, plan.micro_batches
        )

    def _allows_counts(self, counts) -> bool:
        return not self.powers_of_two or all(count & (count - 1) == 0 for count in counts)

    def _has_rows(self, global_batch, counts, micro_batches) -> bool:
        return global_batch // micro_batches // max(counts) >= self.least_rows


_OF_FORCE = ("stages", "micro_batches", "schedule", "interleave", "replicas")
_OF_REQUEST = (
    "gradient_bytes_per_param_byte",
    "optimizer_bytes_per_param_byte",
    "memory_margin",
    "schedules",
    "max_interleave",
    "recompute",
    "reduction_buckets",
)


def of(config) -> Allowed:
    return Allowed(config.min_pipeline_bs, config.limit_dev_num_pot, not config.dp_search_all)


def _layouts(ranks, stages):
    """Replicas of each stage, in all ways that are looked at."""
    if ranks > MOST_RANKS:
        numbers = [stages] if stages else range(1, ranks + 1)
        return [(each,) * number for number in numbers for each in range(1, ranks // number + 1)]
    return [
        counts
        for number in ([stages] if stages else range(1, ranks + 1))
        for counts in _shared_out(ranks, number)
    ]


def _shared_out(ranks, stages):
    """Up to ``ranks`` over so many stages, each of which gets one at least."""
    if stages == 0:
        yield ()
        return
    for first in range(1, ranks - stages + 2):
        for others in _shared_out(ranks - first, stages - 1):
            yield first, *others


def _forced(request, micro_batches, **force):
    """``request`` with more that is forced, as far as it is not None."""
    kept = {name: getattr(request, name) for name in _OF_REQUEST}
    before = {name: getattr(request.force, name) for name in _OF_FORCE}
    force = before | {name: value for name, value in force.items() if value is not None}
    return _C.partition.Request(
        request.global_batch,
        **kept,
        micro_batches=micro_batches,
        force=_C.partition.Force(**force),
    )


def _feasible(request, search):
    """The time of its best plan, and the request; (0, None) where nothing fits."""
    try:
        plan = search(request).plan
    except ConfigError:  # such as more stages than blocks
        return 0, None
    return (plan.iteration_ns, request) if plan.feasible else (0, None)
