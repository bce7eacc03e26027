"""Baselines that replicate all stages alike: equal layers, data parallelism, torchgpipe."""

from itertools import pairwise

import numpy as np

from benchmarks.planner.candidates import (
    micro_batch_counts,
    schedules,
    with_recompute,
    world_of,
)
from benchmarks.planner.units import SetCosts, Units


def cut_costs(units, cuts_of, request):
    """SetCosts of only the ranges that some list of cuts in `cuts_of` uses; and their indices."""
    index, rows = {}, []
    for cuts in cuts_of:
        for i, j in pairwise([0, *cuts, units.count]):
            if (i, j) not in index:
                index[i, j] = len(rows)
                row = np.zeros(units.count)
                row[i:j] = 1
                rows.append(row)
    return SetCosts(units, np.array(rows), request), index


def replica_counts(most):
    return sorted({2**k for k in range(most.bit_length())} | {most})


def uniform(graph, cluster, request, cuts_of, units, wanted, rules):
    """Cuts (by number of stages) with equally many replicas each."""
    world = world_of(cluster)
    costs, index = cut_costs(units, cuts_of.values(), request)
    for stages, cuts in cuts_of.items():
        sets = [index[i, j] for i, j in pairwise([0, *cuts, units.count])]
        for r in replica_counts(world // stages):
            for m in micro_batch_counts(request):
                if m * r > request["global_batch"]:
                    continue
                for schedule in schedules(request, wanted):
                    yield from with_recompute(
                        costs, sets, [r] * stages, m, schedule, cluster, rules
                    )


def equal_layers(graph, cluster, request):
    """Equally many layers on each stage, the same replicas everywhere (as Megatron-LM is used)."""
    units = Units(graph)
    layers = [u for u, layer in enumerate(units.layers) if layer]
    if len(layers) < 2:
        layers = list(range(units.count))
    cuts_of = {}
    for stages in range(1, min(world_of(cluster), len(layers)) + 1):
        each, more = divmod(len(layers), stages)
        firsts = [s * each + min(s, more) for s in range(1, stages)]
        cuts_of[stages] = [layers[k] for k in firsts]
    yield from uniform(
        graph, cluster, request, cuts_of, units, ("gpipe", "1f1b"), ("never", "needed", "always")
    )


def data_parallel(graph, cluster, request):
    """One stage; gradients accumulate over the micro-batches."""
    units = Units(graph, limit=1)
    costs, index = cut_costs(units, [[]], request)
    for r in range(1, world_of(cluster) + 1):
        for m in micro_batch_counts(request):
            if m * r <= request["global_batch"]:
                for schedule in schedules(request):
                    yield from with_recompute(
                        costs, [index[0, 1]], [r], m, schedule, cluster, ("never", "always")
                    )


def block_partition(sequence, parts):
    """Sizes of blocks that differ by at most the largest element (Barany and Grolmusz, 2013).

    While the largest block exceeds the smallest by more than that, an element next to the smallest
    moves into it from the side of the largest.
    """
    low, high = min(sequence), max(sequence)
    scaled = [(x - low) / (high - low) if high > low else 0.0 for x in sequence]
    ends = [len(sequence) // parts * (k + 1) for k in range(parts - 1)] + [len(sequence)]

    def sums():
        return [sum(scaled[a:b]) for a, b in pairwise([0, *ends])]

    while True:
        now = sums()
        largest = max(range(parts), key=lambda k: (now[k], k))
        most = now[largest]
        giver = None
        while giver != largest:
            now = sums()
            smallest = min(range(parts), key=lambda k: (now[k], k))
            if most <= now[smallest] + 1:
                return ends
            if largest < smallest:
                giver = smallest - 1
                ends[giver] -= 1
            else:
                giver = smallest + 1
                ends[smallest] += 1


def torchgpipe(graph, cluster, request):
    """torchgpipe's balance by time and by size, fill-drain, recompute everywhere or nowhere; with
    data parallelism around it."""
    units = Units(graph)
    by_time = units.costs["forward_ns"][:, -1] + units.costs["backward_ns"][:, -1]
    for costs in (by_time, units.costs["saved_bytes"][:, -1]):
        weights = np.add.reduceat(costs, units.starts).tolist()
        cuts_of = {}
        for stages in range(1, min(world_of(cluster), units.count) + 1):
            ends = block_partition(weights, stages)
            if len(set(ends)) == stages and ends[0] > 0:
                cuts_of[stages] = ends[:-1]
        yield from uniform(graph, cluster, request, cuts_of, units, ("gpipe",), ("never", "always"))
