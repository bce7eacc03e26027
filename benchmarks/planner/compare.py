"""The planner against other planners' rules: the ratio of their best plan's time to ours.

    python -m benchmarks.planner.compare [--jobs N] [--lost FOLDER] [--only WORD] [GRAPH.json ...]

Without files: the graphs of synthetic.py. Every plan is judged by the core's evaluator. Prints the
table of docs/planner.md. `--lost` gets the files of each case in which a baseline is faster, and
the last line counts them; the program then ends with 1.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path

from benchmarks.planner import synthetic
from benchmarks.planner.baselines import BASELINES
from benchmarks.planner.candidates import bound_ns
from pyrannc import _C


def cluster(hosts, devices, memory_gb, inside, between, cards=1):
    """Bandwidths in GB/s per direction."""
    return {
        "format": "rannc-cluster",
        "version": 1,
        "hosts": hosts,
        "devices_per_host": devices,
        "device_memory_bytes": memory_gb * 1e9,
        "intra_host": {"bandwidth_bytes_per_s": inside * 1e9, "latency_ns": 6000.0},
        "inter_host": {
            "bandwidth_bytes_per_s": between * 1e9,
            "latency_ns": 12000.0,
            "links_per_host": cards,
        },
    }


CLUSTERS = {
    "1 x 8 16 GB": cluster(1, 8, 16, 120, 12.5),
    "4 x 8 16 GB": cluster(4, 8, 16, 120, 12.5),
    "4 x 8 40 GB": cluster(4, 8, 40, 240, 25, cards=4),
    "16 x 8 80 GB": cluster(16, 8, 80, 240, 25, cards=8),
}
REQUESTS = {
    "256 rows": {"global_batch": 256},
    "1024 rows, mixed": {
        "global_batch": 1024,
        "gradient_bytes_per_param_byte": 1,
        "optimizer_bytes_per_param_byte": 6,
        "memory_margin": 0.05,
        "reduction_buckets": 8,
    },
}


def toml(cluster):
    lines = []
    for key, value in cluster.items():
        if not isinstance(value, dict):
            lines.append(f"{key} = {json.dumps(value)}")
    for key, value in cluster.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{k} = {v!r}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


@dataclass
class Case:
    """One graph, cluster and request; what each planner reached."""

    name: str
    cluster_name: str
    request_name: str
    graph: dict
    plan_ns: float = inf
    plan_s: float = 0.0
    stages: str = ""
    best: dict = field(default_factory=dict)  # baseline -> (ns, plan)

    @property
    def cluster(self):
        return CLUSTERS[self.cluster_name]

    @property
    def request(self):
        request = {"format": "rannc-plan-request", "version": 1, "schedules": ["gpipe", "1f1b"]}
        return {**request, **REQUESTS[self.request_name]}


def solve(case):
    profile = _C.cost.GraphProfile.from_json(json.dumps(case.graph))
    machine = _C.cost.Cluster.from_toml(toml(case.cluster))
    request = _C.partition.Request.from_json(json.dumps(case.request))

    def judge(plan):
        verdict = _C.partition.evaluate(profile, machine, request, plan)
        return inf if verdict.problems else verdict.iteration_ns

    start = time.perf_counter()
    plan = _C.partition.make_plan(profile, machine, request)
    case.plan_s = time.perf_counter() - start
    if plan.feasible:
        case.plan_ns = judge(plan)
        case.stages = (
            f"{len(plan.stages)} x {'/'.join(sorted({str(len(s.ranks)) for s in plan.stages}))}, "
            f"{plan.schedule}, {plan.micro_batches}"
        )
    for name, rule in BASELINES.items():
        best, best_plan = inf, None
        for candidate in rule(case.graph, case.cluster, case.request):
            if bound_ns(candidate) >= best:
                continue
            proposed = candidate.plan()
            ns = judge(_C.plan.Plan.from_json(json.dumps(proposed)))
            if ns < best:
                best, best_plan = ns, proposed
        case.best[name] = (best, best_plan)
    return case


def ratio_text(ns, plan_ns):
    if not isfinite(ns):
        return "-"
    return f"{ns / plan_ns:.3f}" if isfinite(plan_ns) else "lost"


def line(cells):
    return "| " + " | ".join(cells) + " |"


def head():
    names = ["graph", "cluster", "request", "planner", "s", *BASELINES]
    return line(names) + "\n|" + "---|" * len(names)


def row(case):
    planner = f"{case.plan_ns / 1e6:.1f} ms ({case.stages})" if case.stages else "no plan"
    cells = [case.name, case.cluster_name, case.request_name, planner, f"{case.plan_s:.2f}"]
    return line([*cells, *(ratio_text(case.best[name][0], case.plan_ns) for name in BASELINES)])


def lost(case):
    return [name for name, (ns, _) in case.best.items() if ns < case.plan_ns * (1 - 1e-6)]


def save_lost(case, folder):
    for name in lost(case):
        words = f"{case.name} {case.cluster_name} {case.request_name} {name}"
        where = Path(folder) / "".join(c if c.isalnum() else "-" for c in words)
        where.mkdir(parents=True, exist_ok=True)
        (where / "graph.json").write_text(json.dumps(case.graph))
        (where / "cluster.toml").write_text(toml(case.cluster))
        (where / "request.json").write_text(json.dumps(case.request))
        plan = {**case.best[name][1], "iteration_ns": round(case.best[name][0])}
        (where / "baseline.json").write_text(json.dumps(plan))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lost", help="folder for the cases in which a baseline is faster")
    parser.add_argument("--only", default="", help="cases whose graph, cluster or request says so")
    options = parser.parse_args()
    graphs = {path.stem: json.loads(path.read_text()) for path in options.graphs}
    cases = [
        Case(name, cluster_name, request_name, graph)
        for name, graph in (graphs or synthetic.graphs()).items()
        for cluster_name in CLUSTERS
        for request_name in REQUESTS
        if options.only in f"{name}, {cluster_name}, {request_name}"
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        solved = []
        print(head(), flush=True)
        for case in pool.map(solve, cases):
            solved.append(case)
            if options.lost:
                save_lost(case, options.lost)
            print(row(case), flush=True)
    worse = [case for case in solved if lost(case)]
    print(f"\n{len(solved)} cases; a baseline is faster in {len(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
