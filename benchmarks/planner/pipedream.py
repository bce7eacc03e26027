"""PipeDream's programme (Narayanan et al. 2019)."""

import numpy as np

from benchmarks.planner.candidates import (
    micro_batch_counts,
    range_costs,
    schedules,
    with_recompute,
)

RULES = ("never", "needed", "always")


def pipedream(graph, cluster, request):
    """The slowest stage, its synchronisation and its transfers included, at two levels: hosts, then
    devices of a host; run as 1F1B with a flush.

    The published programme synchronises after every micro-batch; `share` spreads that over all
    micro-batches of a batch, as a flush allows.
    """
    costs, table = range_costs(graph, request, limit=48)
    for m in micro_batch_counts(request):
        for share in {1, m}:
            for sets, ranks in plans(costs, table, cluster, m, share):
                replicas = [len(group) for group in ranks]
                for schedule in schedules(request, ("1f1b",)):
                    yield from with_recompute(
                        costs, sets, replicas, m, schedule, cluster, RULES, ranks
                    )


def bytes_at_cuts(units, rows):
    """Bytes that pass between units k-1 and k, for each k."""
    result = np.zeros(units.count + 1)
    for producer, size, users in zip(units.producers, units.sizes, units.users, strict=True):
        if producer >= 0:
            result[producer + 1 : int(np.flatnonzero(users)[-1]) + 1] += size[0] * rows + size[1]
    return result


def slowest_stage(times, transfer, devices):
    """A[i, j, k]: the best slowest stage of units [i, j) on exactly k devices, and how.

    times[r][i, j]: a stage on r devices; transfer[k]: over the cut before unit k, on one device.
    """
    n = transfer.size - 1
    best = np.full((n + 1, n + 1, devices + 1), np.inf)
    how = np.zeros((n + 1, n + 1, devices + 1, 2), dtype=int)  # cut, devices of the last stage
    for k in range(1, devices + 1):
        if k in times:
            best[:, :, k] = times[k]
            how[:, :, k, 0] = np.arange(n + 1)[:, None]
            how[:, :, k, 1] = k
        for r in range(1, k):
            if r not in times:
                continue
            for j in range(2, n + 1):
                last = np.maximum(times[r][:, j], transfer / r)
                value = np.maximum(best[:, :, k - r], last[None, :])
                cut = np.argmin(value, axis=1)
                value = value[np.arange(n + 1), cut]
                better = value < best[:, j, k]
                best[better, j, k] = value[better]
                how[better, j, k, 0], how[better, j, k, 1] = cut[better], r
    return best, how


def walk(how, i, j, k):
    stages = []
    while j > i:
        cut, r = (int(x) for x in how[i, j, k])
        stages.append((cut, j, r))
        j, k = cut, k - r
    return stages[::-1]


def plans(costs, table, cluster, m, share):
    """The best plan for each number of hosts."""
    n, batch, hosts = costs.units.count, costs.batch, cluster["hosts"]
    starts, ends = np.nonzero(table >= 0)
    gradients = np.zeros((n + 1, n + 1))
    gradients[starts, ends] = costs.gradient_bytes
    inside = cluster["intra_host"]["bandwidth_bytes_per_s"] / 1e9
    between = cluster.get("inter_host", {}).get("bandwidth_bytes_per_s", 1e9) / 1e9
    between *= cluster.get("inter_host", {}).get("links_per_host", 1)
    devices, levels, outer = cluster["devices_per_host"], {}, {}
    for q in range(1, hosts + 1):  # a stage replicated over q hosts
        times = {}
        for r in range(1, devices + 1):
            if m * q * r > batch:
                break
            c = costs.at(costs.rows(m, q * r))
            sync = 2 * (r - 1) / r * costs.gradient_bytes / inside / share
            times[r] = np.full((n + 1, n + 1), np.inf)
            times[r][starts, ends] = np.maximum(c["forward_ns"] + c["backward_ns"], sync)
        if not times:
            break
        transfer = 2 * bytes_at_cuts(costs.units, batch / m / q) / inside
        levels[q] = slowest_stage(times, transfer, devices)
        sync = 2 * (q - 1) / q * gradients / between / share
        outer[q] = np.maximum(levels[q][0][:, :, devices], sync)
    transfer = 2 * bytes_at_cuts(costs.units, batch / m) / between
    best, how = slowest_stage(outer, transfer, hosts)
    for used in range(1, hosts + 1):
        if not np.isfinite(best[0, n, used]):
            continue
        sets, ranks, first = [], [], 0
        for i, j, q in walk(how, 0, n, used):
            device = 0
            for a, b, r in walk(levels[q][1], i, j, devices):
                sets.append(table[a, b])
                at = [(first + h) * devices + device for h in range(q)]
                ranks.append([start + k for start in at for k in range(r)])
                device += r
            first += q
        yield sets, ranks
