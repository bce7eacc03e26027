"""Plans whose stages begin at random places of a graph, as files for a job to load."""

import itertools
import random

from pyrannc import _C

DRAWS = 200


def parameters_of(graph, nodes):
    """The trained parameters that nodes, which are named, use, with their bytes."""
    index_of = {node.name: index for index, node in enumerate(graph.nodes)}
    used = {}
    for name in nodes:
        for index in graph.operands(index_of[name]):
            value = None if index is None else graph.values[index]
            if value is not None and value.kind == "parameter" and value.requires_grad:
                used[value.name] = value.bytes(1)
    return used


def smallest_share(graph, stages):
    """The smallest share of all parameters that a stage uses, of lists of names of nodes."""
    held = [sum(parameters_of(graph, nodes).values()) for nodes in stages]
    total = sum(parameters_of(graph, [name for nodes in stages for name in nodes]).values())
    return min(held) / total if total else 0.0


def cut(graph, stages, seed):
    """The names of the nodes of each of ``stages`` stages, whose borders are drawn.

    Where some draw gives each stage a parameter of its own to train, the first of those; the others
    leave a stage with nothing but a reshape or so, which shows little.
    """
    choose = random.Random(seed)
    depends = _C.ir.depends_on_rows(graph)
    order = [index for index in range(len(graph.nodes)) if depends[index]]
    place = {index: number for number, index in enumerate(order)}
    inside = set()  # a border before these would cut nodes apart that must stay together
    for together in _C.ir.inseparable_nodes(graph):
        places = [place[index] for index in together if index in place]
        inside.update(range(min(places) + 1, max(places) + 1) if places else ())
    free = [number for number in range(1, len(order)) if number not in inside]
    names = [graph.nodes[index].name for index in order]
    best, best_share = None, -1.0
    for _ in range(DRAWS):
        borders = [0, *sorted(choose.sample(free, stages - 1)), len(order)]
        found = [names[begin:end] for begin, end in itertools.pairwise(borders)]
        share = smallest_share(graph, found)
        if share > best_share:
            best, best_share = found, share
        if share > 0:
            break
    return best


def segments(nodes, together, length=3):
    """Consecutive nodes of a stage, about ``length`` in each; every third such part is left out.

    ``together``: sets of names, of which no two segments have a part.
    """
    place = {name: number for number, name in enumerate(nodes)}
    inside = set()
    for names in together:
        places = [place[name] for name in names if name in place]
        inside.update(range(min(places) + 1, max(places) + 1) if places else ())
    borders = [0]
    for border in range(1, len(nodes)):
        if border - borders[-1] >= length and border not in inside:
            borders.append(border)
    parts = [nodes[begin:end] for begin, end in itertools.pairwise([*borders, len(nodes)])]
    return [part for number, part in enumerate(parts) if number % 3 != 2]


def segments_of(length):
    """The same as a function of the nodes, none of which belong together."""
    return lambda nodes: segments(nodes, [], length)


def recompute_by_turns(stages, together):
    """Lets every second stage of a plan file recompute, and the others in segments."""
    for index, stage in enumerate(stages):
        stage["recompute"] = index % 2 == 0 or segments(stage["nodes"], together)


def plan(graph, ranks, micro_batches, schedule, recompute, seed):
    """The content of a plan file.

    Args:
        ranks: Of each stage.
        recompute: As the setting, or "mixed": see :func:`recompute_by_turns`.
    """
    made = {
        "format": "rannc-plan",
        "version": 3,
        "schedule": schedule,
        "interleave": 2 if schedule == "interleaved" else 1,
        "micro_batches": micro_batches,
        "stages": [
            {
                "nodes": nodes,
                "ranks": ranks[index],
                "recompute": recompute == "always",
            }
            for index, nodes in enumerate(cut(graph, len(ranks), seed))
        ],
    }
    if recompute == "mixed":
        sets = _C.ir.inseparable_nodes(graph)
        together = [[graph.nodes[index].name for index in each] for each in sets]
        recompute_by_turns(made["stages"], together)
    return made
