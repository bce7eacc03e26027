"""Random graphs, clusters, requests and valid plans of them, as the parsed planner files."""

import itertools
import random


def random_graph(dice: random.Random, nodes: int) -> dict:
    rows = dice.choice([[1], [3], [1, 4], [2, 3, 9]])

    def costs(low, high):
        base, slope = dice.uniform(-low, low), dice.uniform(0, high)
        return [max(0.0, base + slope * b + dice.uniform(0, 3)) for b in rows]

    largest = dice.choice([5000, 500_000])  # at times the reductions are what takes long
    params = [
        {
            "id": f"p{k}",
            "bytes": dice.randrange(0, largest),
            "trainable": dice.random() < 0.8,
            **({"optimizer_bytes": dice.randrange(0, 9000)} if dice.random() < 0.3 else {}),
        }
        for k in range(dice.randrange(0, nodes + 1))
    ]
    graph = {
        "format": "rannc-graph-profile",
        "version": 1,
        "name": "random",
        "dtype": "float32",
        "rows": rows,
        "inputs": [
            {"name": "x", "bytes_per_row": dice.randrange(0, 400)},
            {"name": "y", "fixed_bytes": dice.randrange(0, 90), "bytes_per_row": 7},
        ],
        "params": params,
        "nodes": [],
    }
    for k in range(nodes):
        inputs = [dice.choice(["x", "y"])] if k == 0 or dice.random() < 0.2 else []
        for _ in range(dice.randrange(0, 4) if k else 0):
            j = k - 1 if dice.random() < 0.5 else dice.randrange(k)
            output = dice.randrange(len(graph["nodes"][j]["outputs"]))
            inputs.append(f"n{j}:{output}" if output or dice.random() < 0.5 else f"n{j}")
        outputs = []
        for _ in range(dice.choice([1, 1, 1, 2, 3])):
            output = {"bytes_per_row": dice.choice([0, dice.randrange(1, 3000)])}
            if dice.random() < 0.3:
                output["fixed_bytes"] = dice.randrange(0, 500)
            if dice.random() < 0.25:
                output["grad"] = False
            outputs.append(output)
        node = {
            "name": f"n{k}",
            "op": "op",
            "inputs": list(dict.fromkeys(inputs)),
            "params": dice.sample([p["id"] for p in params], min(len(params), dice.randrange(3))),
            "outputs": outputs,
            "forward_ns": costs(500, 900),
            "backward_ns": costs(900, 1900),
            "saved_bytes": costs(300, 3000),
        }
        if dice.random() < 0.5:
            node["workspace_bytes"] = costs(100, 1000)
        graph["nodes"].append(node)
    return graph


def as_version_2(dice: random.Random, graph: dict) -> None:
    """Makes the graph one of version 2, with memory that several nodes save."""
    graph["version"] = 2
    names = [node["name"] for node in graph["nodes"]]
    for node in graph["nodes"]:
        if dice.random() < 0.4:
            node["adds_in_place"] = dice.random() < 0.7
        if dice.random() < 0.2:
            del node["saved_bytes"]
        if dice.random() < 0.2:
            node |= {"module": "m", "source": "m.py:3"}
    if dice.random() < 0.4:
        for node in graph["nodes"]:
            for key in ("forward_host_ns", "backward_host_ns"):
                if dice.random() < 0.8:
                    node[key] = [dice.uniform(0, 4000) for _ in graph["rows"]]
    graph["saved"] = [
        {
            "nodes": sorted(
                dice.sample(names, min(len(names), dice.randrange(1, 5))), key=names.index
            ),
            "bytes": [dice.uniform(0, 900) * rows for rows in graph["rows"]],
        }
        for _ in range(dice.randrange(0, 2 * len(names)))
    ]


def random_cluster(dice: random.Random) -> dict:
    return {
        "format": "rannc-cluster",
        "version": 1,
        "hosts": dice.randrange(1, 4),
        "devices_per_host": dice.randrange(1, 6),
        "device_memory_bytes": 1e15,
        "intra_host": {"bandwidth_bytes_per_s": 10 ** dice.uniform(8, 11), "latency_ns": 30},
        "inter_host": {
            "bandwidth_bytes_per_s": 10 ** dice.uniform(7.5, 10),
            "latency_ns": 210.5,
            "links_per_host": dice.choice([1, 1, 2, 3]),
        },
    }


def random_request(dice: random.Random) -> dict:
    """Allows every choice."""
    batch = dice.randrange(1, 25)
    return {
        "format": "rannc-plan-request",
        "version": 3,
        "global_batch": batch,
        "gradient_bytes_per_param_byte": dice.choice([1, 0.5, 2, 0]),
        "optimizer_bytes_per_param_byte": dice.choice([2, 6, 0]),
        "memory_margin": dice.choice([0, 0.1]),
        "micro_batches": list(range(1, batch + 1)),
        "schedules": ["gpipe", "1f1b", "interleaved"],
        "max_interleave": 4,
        "reduction_buckets": dice.choice([1, 1, 2, 5]),
    }


def linear_order(dice: random.Random, graph: dict) -> list[str]:
    """A random order of the nodes in which no value goes back."""
    before = {
        node["name"]: {read.split(":")[0] for read in node["inputs"]} - {"x", "y"}
        for node in graph["nodes"]
    }
    order = []
    while before:
        name = dice.choice([name for name, sources in before.items() if not sources])
        del before[name]
        for sources in before.values():
            sources.discard(name)
        order.append(name)
    return order


def recompute(dice: random.Random, nodes: list) -> bool | list:
    """Of a stage with these nodes: none of it, all of it, or segments."""
    if dice.random() < 0.6:
        return dice.random() < 0.4
    cuts = sorted(dice.sample(range(1, len(nodes)), dice.randrange(len(nodes))))
    segments = [nodes[a:b] for a, b in itertools.pairwise([0, *cuts, len(nodes)])]
    return [segment for segment in segments if dice.random() < 0.8] or False


def random_plan(dice: random.Random, graph: dict, cluster: dict, request: dict) -> dict:
    """Any valid plan, whatever its memory; some of a stage's nodes become a group of the graph."""
    world, batch = cluster["hosts"] * cluster["devices_per_host"], request["global_batch"]
    order = linear_order(dice, graph)
    while True:
        interleave = dice.choice([1, 1, 2, 3, 4])
        groups = dice.randrange(1, min(world, len(order)) + 1)
        stages = groups * interleave
        m = dice.randrange(1, batch + 1)
        if stages <= len(order) and (interleave == 1 or (groups > 1 and m % groups == 0)):
            break
    cuts = sorted(dice.sample(range(1, len(order)), stages - 1))
    position = {node["name"]: k for k, node in enumerate(graph["nodes"])}
    free = dice.sample(range(world), world)
    ranks = [[free.pop()] for _ in range(groups)]
    for rank in free:
        group = dice.choice([None, *ranks])
        if group is not None and m * (len(group) + 1) <= batch:
            group.append(rank)
    for group in ranks:
        dice.shuffle(group)
    plan = {
        "format": "rannc-plan",
        "version": 3,
        "feasible": True,
        "schedule": "interleaved" if interleave > 1 else dice.choice(["gpipe", "1f1b"]),
        "interleave": interleave,
        "micro_batches": m,
        "iteration_ns": 0,
        "stages": [
            {
                "nodes": sorted(order[a:b], key=position.get),
                "ranks": ranks[s % groups],
                "recompute": recompute(dice, sorted(order[a:b], key=position.get)),
            }
            for s, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(order)], strict=True))
        ],
    }
    together = set(dice.choice(plan["stages"])["nodes"])
    for node in graph["nodes"]:
        if node["name"] in together and dice.random() < 0.3:
            node["group"] = "g"
    return plan
