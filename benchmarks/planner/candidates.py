"""A baseline's proposals: stages of units with replicas; and a screen that spares most verdicts."""

from dataclasses import dataclass, field

import numpy as np

from benchmarks.planner.units import SetCosts, Units, all_ranges, limit_of


@dataclass
class Candidate:
    costs: SetCosts
    sets: list[int]  # one per stage: indices into costs.members
    replicas: list[int]
    micro_batches: int
    schedule: str
    recompute: list[bool]
    ranks: list[list[int]] = field(default_factory=list)  # empty: ascending in pipeline order

    def plan(self):
        ranks, first = list(self.ranks), 0
        for count in self.replicas if not ranks else []:
            ranks.append(list(range(first, first + count)))
            first += count
        units = self.costs.units
        return {
            "format": "rannc-plan",
            "version": 1,
            "feasible": True,
            "schedule": self.schedule,
            "interleave": 1,
            "micro_batches": self.micro_batches,
            "iteration_ns": 0,
            "stages": [
                {
                    "nodes": units.nodes(np.flatnonzero(self.costs.members[s])),
                    "ranks": ranks[k],
                    "recompute": bool(self.recompute[k]),
                }
                for k, s in enumerate(self.sets)
            ],
        }


def in_flight(schedule, micro_batches, stages, stage):
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)


def bound_ns(candidate):
    """No plan ends before its busiest stage has done its work and the others led to it and back."""
    times = []
    for s, replicas in zip(candidate.sets, candidate.replicas, strict=True):
        c = candidate.costs.at(candidate.costs.rows(candidate.micro_batches, replicas))
        times.append((c["forward_ns"][s], c["backward_ns"][s]))
    return max(candidate.micro_batches * (f + g) for f, g in times)


def recompute_where_needed(costs, sets, replicas, m, schedule, cluster, rule="needed"):
    """Recompute per stage ("needed", "never", "always"), or None when a stage does not fit."""
    limit, result = limit_of(cluster, costs.request), []
    allowed = costs.request.get("recompute", "auto")
    for k, (s, r) in enumerate(zip(sets, replicas, strict=True)):
        flight = in_flight(schedule, m, len(sets), k)
        for recompute in (False, True):
            if allowed == ("always" if not recompute else "never"):
                continue
            if rule == ("always" if not recompute else "never"):
                continue
            if costs.peak(costs.rows(m, r), flight, recompute)[s] <= limit:
                result.append(recompute)
                break
        else:
            return None
    return result


def micro_batch_counts(request):
    batch = request["global_batch"]
    powers = [2**k for k in range(batch.bit_length())]
    return [m for m in request.get("micro_batches", powers) if m <= batch]


def schedules(request, wanted=("gpipe", "1f1b")):
    return [s for s in request.get("schedules", ["gpipe", "1f1b"]) if s in wanted]


def world_of(cluster):
    return cluster["hosts"] * cluster["devices_per_host"]


def with_recompute(costs, sets, replicas, m, schedule, cluster, rules, ranks=()):
    """The candidates that fit, one for each recompute rule that makes a difference."""
    known = []
    for rule in rules:
        recompute = recompute_where_needed(costs, sets, replicas, m, schedule, cluster, rule)
        if recompute is not None and recompute not in known:
            known.append(recompute)
            yield Candidate(costs, list(sets), list(replicas), m, schedule, recompute, list(ranks))


def range_costs(graph, request, limit=None):
    units = Units(graph, limit)
    members, table = all_ranges(units.count)
    return SetCosts(units, members, request), table
