"""How planning time grows with nodes, devices and micro-batch counts.

    pip install matplotlib
    python -m benchmarks.planner.growth [--program build/rannc-plan] [--picture FILE.svg]

Each point is one run of the program on files on disk, one thread; processor time of the whole
process, the least of three runs. Prints a table and the slopes in the log-log plane.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import tempfile
from pathlib import Path

SEQUENCE, HIDDEN, VOCABULARY, FLOPS_PER_NS = 2048, 4096, 51200, 1e5


def transformer(nodes):
    """A chain of layers behind an embedding that is tied to the head, with ``nodes`` nodes."""
    layers = nodes - 2
    share = min(1.0, 96 / layers)  # of a real layer: 96 of them at most
    value, weights = 2 * SEQUENCE * HIDDEN, 12 * HIDDEN**2 * share

    def node(name, flops, saved, reads, param):
        ns = flops / FLOPS_PER_NS
        return {
            "name": name,
            "op": name.split(".")[0],
            "inputs": [reads],
            "params": [param],
            "outputs": [{"bytes_per_row": value}],
            "forward_ns": [5e3 + ns, 5e3 + 4 * ns],
            "backward_ns": [1e4 + 2 * ns, 1e4 + 8 * ns],
            "saved_bytes": [saved, 4 * saved],
        }

    listed = [node("embedding", 1e9, value, "tokens", "embedding.weight")]
    params = [{"id": "embedding.weight", "bytes": 2 * VOCABULARY * HIDDEN}]
    for layer in range(layers):
        weight = f"layers.{layer}.weight"
        params.append({"id": weight, "bytes": 2 * weights})
        flops = 2 * SEQUENCE * weights * (1 + layer % 3 / 4)
        listed.append(
            node(f"layers.{layer}", flops, 17 * value * share, listed[-1]["name"], weight)
        )
    head = 2 * SEQUENCE * VOCABULARY
    listed.append(node("head", head * HIDDEN, head, listed[-1]["name"], "embedding.weight"))
    return {
        "format": "rannc-graph-profile",
        "version": 1,
        "name": f"transformer {nodes}",
        "rows": [1, 4],
        "inputs": [{"name": "tokens", "bytes_per_row": 8 * SEQUENCE}],
        "params": params,
        "nodes": listed,
    }


def cluster(devices):
    hosts = max(1, devices // 8)
    return (
        'format = "rannc-cluster"\nversion = 1\n'
        f"hosts = {hosts}\ndevices_per_host = {devices // hosts}\ndevice_memory_bytes = 80e9\n"
        "[intra_host]\nbandwidth_bytes_per_s = 3e11\nlatency_ns = 5000\n"
        "[inter_host]\nbandwidth_bytes_per_s = 2.5e10\nlatency_ns = 10000\nlinks_per_host = 8\n"
    )


def seconds(program, folder, nodes, devices, counts):
    """Processor seconds of one planning run, and the plan's gap."""
    files = {name: Path(folder, name) for name in ("g.json", "c.toml", "r.json", "plan.json")}
    files["g.json"].write_text(json.dumps(transformer(nodes)))
    files["c.toml"].write_text(cluster(devices))
    request = {"format": "rannc-plan-request", "version": 1, "global_batch": 512}
    request["optimizer_bytes_per_param_byte"] = 6
    request["micro_batches"] = [2**k for k in range(10 - counts, 10)][:counts]
    files["r.json"].write_text(json.dumps(request))
    argv = [program, "plan", "--threads", "1", "--graph", files["g.json"]]
    argv += ["--cluster", files["c.toml"], "--request", files["r.json"], "-o", files["plan.json"]]
    best = math.inf
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best, json.loads(files["plan.json"].read_text())["notes"]["gap"]


def slope(points):
    """Least squares in the log-log plane."""
    xs, ys = ([math.log(value) for value in column] for column in zip(*points, strict=True))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)


SERIES = {
    "nodes (32 devices, 10 counts)": [(n, (n, 32, 10)) for n in (40, 80, 160, 640, 2560, 10240)],
    "devices (100 nodes, 10 counts)": [(d, (100, d, 10)) for d in (8, 16, 32, 64, 256, 1024, 4096)],
    "micro-batch counts (100 nodes, 32 devices)": [(c, (100, 32, c)) for c in (1, 2, 4, 7, 10)],
}


def draw(results, path):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(13, 3.6), sharey=True)
    for axis, (name, points) in zip(axes, results.items(), strict=True):
        axis.loglog(*zip(*points, strict=True), marker="o")
        axis.set_xlabel(name)
        axis.set_title(f"exponent {slope(points):.2f}")
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("processor seconds")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/rannc-plan")
    parser.add_argument("--picture")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, cases in SERIES.items():
            print(f"| {name} | seconds | gap |\n|---|---|---|")
            points = []
            for x, (nodes, devices, counts) in cases:
                spent, gap = seconds(os.fspath(arguments.program), folder, nodes, devices, counts)
                points.append((x, spent))
                print(f"| {x} | {spent:.2f} | {gap:.2f} |", flush=True)
            print(f"\nexponent {slope(points):.2f}\n")
            results[name] = points
    if arguments.picture:
        draw(results, arguments.picture)


if __name__ == "__main__":
    main()
