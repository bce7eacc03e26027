"""Piper's programme (Tarnawski et al. 2021), without tensor parallelism."""

import numpy as np

from benchmarks.planner.candidates import Candidate, micro_batch_counts, schedules, world_of
from benchmarks.planner.units import SetCosts, Units, limit_of


def down_sets(units, most=160):
    """All sets of units closed under their sources; only prefixes when there are too many."""
    sources = units.sources()
    before = [sum(1 << int(f) for f in np.flatnonzero(row)) for row in sources]
    found, queue = {0}, [0]
    while queue and len(found) <= most:
        placed = queue.pop()
        for u in range(units.count):
            if not placed >> u & 1 and before[u] & ~placed == 0 and placed | 1 << u not in found:
                found.add(placed | 1 << u)
                queue.append(placed | 1 << u)
    if len(found) > most:
        found = {(1 << k) - 1 for k in range(units.count + 1)}
    return sorted(found, key=lambda s: (s.bit_count(), s))


def piper(graph, cluster, request):
    """Over down-sets: time per sample of the slowest stage, its transfers and its share of the
    reduction included, under memory with the micro-batches that 1F1B keeps in flight; recompute per
    stage."""
    world = world_of(cluster)
    units = Units(graph, limit=40 if world > 16 else 64)
    sets = down_sets(units)
    pairs = [
        (a, b)
        for b, larger in enumerate(sets)
        for a, smaller in enumerate(sets)
        if smaller & ~larger == 0 and smaller != larger
    ]
    members = np.array(
        [[(sets[b] & ~sets[a]) >> u & 1 for u in range(units.count)] for a, b in pairs]
    )
    costs = SetCosts(units, members.astype(float), request)
    first, last = np.array(pairs).T
    host = cluster["devices_per_host"]
    replicas = sorted({*range(1, min(host, world) + 1), *range(host, world + 1, host)})
    for m in micro_batch_counts(request):
        for most in sorted({min(units.count, world, 4), min(units.count, world, 32)}):
            for plan in plans(costs, first, last, cluster, replicas, m, most):
                stages, counts, recompute = zip(*plan, strict=True)
                for schedule in schedules(request, ("1f1b",)):
                    yield Candidate(costs, list(stages), list(counts), m, schedule, list(recompute))


def plans(costs, first, last, cluster, replicas, m, most_stages):
    """The best plan for every number of stages up to `most_stages`, in pipeline order. The k-th set
    of `costs` is what down-set last[k] has more than first[k]."""
    world, limit, batch = world_of(cluster), limit_of(cluster, costs.request), costs.batch
    host = cluster["devices_per_host"]
    inside = cluster["intra_host"]["bandwidth_bytes_per_s"] / 1e9
    between = cluster.get("inter_host", {}).get("bandwidth_bytes_per_s", inside * 1e9) / 1e9
    allowed = costs.request.get("recompute", "auto")
    replicas = [r for r in replicas if m * r <= batch]
    ends = int(last[-1]) + 1
    # Stages are counted from the end of the pipeline: the s-th keeps min(m, s) in flight. The best
    # for the rest after down-set e, with k devices: rest[e, k].
    rest = np.full((ends, world + 1), np.inf)
    rest[ends - 1, 0] = 0
    back = []
    starting = [np.flatnonzero(first == e) for e in range(ends)]
    for s in range(1, most_stages + 1):
        now = np.full((ends, world + 1), np.inf)
        choice = np.zeros((ends, world + 1, 3), dtype=int)
        for r in replicas:
            rows = costs.rows(m, r)
            c = costs.at(rows)
            link = inside if r <= host else between
            plain = costs.peak(rows, min(m, s), False) <= limit
            again = costs.peak(rows, min(m, s), True) <= limit
            if allowed == "always":
                plain = np.zeros_like(plain)
            if allowed == "never":
                again = np.zeros_like(again)
            work = c["forward_ns"] + c["backward_ns"] + np.where(plain, 0, c["forward_ns"])
            work = work + 2 * (c["entering"] + c["leaving"]) / inside
            work = work + 2 * (r - 1) / r * costs.gradient_bytes / link / m
            work[~(plain | again)] = np.inf
            for a in range(ends - 1):
                pairs = starting[a]
                value = np.maximum(work[pairs, None], rest[last[pairs], : world + 1 - r])
                best = np.argmin(value, axis=0)
                at = np.arange(world + 1 - r)
                value = value[best, at]
                better = value < now[a, r:]
                k = at[better] + r
                now[a, k] = value[better]
                chosen = pairs[best[better]]
                choice[a, k, 0], choice[a, k, 1] = chosen, r
                choice[a, k, 2] = ~plain[chosen]
        back.append(choice)
        rest = now
        k = int(np.argmin(now[0]))
        if np.isfinite(now[0, k]):
            a, plan = 0, []
            for level in reversed(back):
                pair, r, recompute = (int(x) for x in level[a, k])
                plan.append((pair, r, bool(recompute)))
                a, k = int(last[pair]), k - r
            yield plan
