"""RaNNC 0.7's rules."""

from math import gcd

import numpy as np

from benchmarks.planner.candidates import Candidate, micro_batch_counts, range_costs
from benchmarks.planner.units import limit_of

GIB_PER_NS = 2**30 / 1e9


def flat_ranks(replicas, first=0):
    """RaNNC 0.7's allocation: in each of gcd rounds, every stage gets consecutive devices."""
    rounds = gcd(*replicas)
    ranks = [[] for _ in replicas]
    for _ in range(rounds):
        for stage, count in enumerate(replicas):
            ranks[stage] += range(first, first + count // rounds)
            first += count // rounds
    return ranks


def rannc_07(graph, cluster, request):
    """RaNNC 0.7: at most 32 blocks, power-of-two devices, all devices, fewest stages that fit,
    fill-drain, recompute when there is more than one micro-batch."""
    costs, table = range_costs(graph, request, limit=32)
    blocks, hosts, batch = costs.units.count, cluster["hosts"], request["global_batch"]
    limit, fewest = limit_of(cluster, request), 1
    starts, ends = np.nonzero(table >= 0)
    for group_hosts in [n for n in range(1, hosts + 1) if hosts % n == 0]:
        devices, copies = cluster["devices_per_host"] * group_hosts, hosts // group_hosts
        solved = {}
        for m in [m for m in micro_batch_counts(request) if m <= 32]:
            if m > 1 and request.get("recompute", "auto") == "never":
                continue
            powers = [2**k for k in range(devices.bit_length()) if copies * m * 2**k <= batch]
            options = {}
            for k in powers:
                rows = costs.rows(m, copies * k)
                c = costs.at(rows)
                forward = np.full((blocks + 1, blocks + 1), np.inf)
                backward = forward.copy()
                sent = (c["entering"] + c["leaving"]) / (20 * GIB_PER_NS)
                again = c["forward_ns"] if m > 1 else 0
                fits = costs.peak(rows, m, m > 1) <= limit
                forward[starts, ends] = np.where(fits, c["forward_ns"] + sent, np.inf)
                backward[starts, ends] = np.where(fits, c["backward_ns"] + again + sent, np.inf)
                options[k] = (forward, backward)
            for stages, plan in stages_of(options, blocks, devices).items():
                if stages >= fewest:
                    solved.setdefault(stages, []).append((m, plan))
        if solved:
            for m, plan in solved[min(solved)]:
                sets = [table[i, j] for i, j, _ in plan]
                replicas = [k * copies for *_, k in plan]
                recompute = [m > 1] * len(plan)
                yield Candidate(costs, sets, replicas, m, "gpipe", recompute, flat_ranks(replicas))
            return
        fewest = devices + 1


def stages_of(options, blocks, devices):
    """{stages: [(first, last, devices)]}: the dynamic programme over two carried maxima."""
    shape = (blocks + 1, devices + 1)
    most_forward, most_backward = np.full(shape, np.inf), np.full(shape, np.inf)
    most_forward[0, 0] = most_backward[0, 0] = 0
    back, result = [], {}
    for stages in range(1, min(blocks, devices) + 1):
        value, choice = np.full(shape, np.inf), np.zeros((*shape, 2), dtype=int)
        new_forward, new_backward = value.copy(), value.copy()
        for k, (forward, backward) in options.items():
            for j in range(1, blocks + 1):
                first = most_forward[:, : devices + 1 - k]
                f = np.maximum(forward[:, j, None], first)
                g = np.maximum(backward[:, j, None], most_backward[:, : devices + 1 - k])
                i = np.argmin(f + g, axis=0)
                at = np.arange(devices + 1 - k)
                better = (f + g)[i, at] < value[j, k:]
                d = at[better] + k
                i = i[better]
                value[j, d] = (f + g)[i, d - k]
                new_forward[j, d], new_backward[j, d] = f[i, d - k], g[i, d - k]
                choice[j, d, 0], choice[j, d, 1] = i, k
        most_forward, most_backward = new_forward, new_backward
        back.append(choice)
        if np.isfinite(value[blocks, devices]):
            j, d, plan = blocks, devices, []
            for level in reversed(back):
                i, k = level[j, d]
                plan.append((int(i), j, int(k)))
                j, d = int(i), d - int(k)
            result[stages] = plan[::-1]
    return result
