"""What joining operators to blocks costs: iteration time with few blocks over that with many.

    python -m benchmarks.planner.coarsening GRAPH.json ...

For each graph: the plan's time with at most 16, 32, 64 and 128 blocks over the time with one block
per operator (at most 1,024), borders refined by operator afterwards as always; and seconds.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.planner.compare import CLUSTERS, toml
from pyrannc import _C

COUNTS = (16, 32, 64, 128, 1024)


def main():
    machine = _C.cost.Cluster.from_toml(toml(CLUSTERS["4 x 8 40 GB"]))
    request = _C.partition.Request.from_json(
        json.dumps({"format": "rannc-plan-request", "version": 1, "global_batch": 256})
    )
    print("| graph | operators | 16 | 32 | 64 | 128 | seconds for 16 ... 128, all |")
    print("|---|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        profile = _C.cost.GraphProfile.from_json(Path(path).read_text())
        times, seconds = [], []
        for count in COUNTS:
            start = time.process_time()
            options = _C.partition.PlannerOptions(max_blocks=count)
            plan = _C.partition.make_plan(profile, machine, request, options)
            seconds.append(f"{time.process_time() - start:.1f}")
            times.append(plan.iteration_ns if plan.feasible else float("nan"))
        ratios = " | ".join(f"{ns / times[-1]:.3f}" for ns in times[:-1])
        name = Path(path).name.removesuffix(".json")
        operators = len(json.loads(Path(path).read_text())["nodes"])
        print(f"| {name} | {operators} | {ratios} | {', '.join(seconds)} |", flush=True)


if __name__ == "__main__":
    main()
