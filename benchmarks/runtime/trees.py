"""How fast steps are beside those of another tree of this project, such as an earlier commit's.

    python benchmarks/runtime/trees.py ../before --rounds 5

Both trees are built. Each starts two ranks in turn, which train the models of models.py under fixed
plans, and the figure is the ratio of the medians: above 1 this tree is slower.

Medians of five rounds on two quiet cores, beside the last commit that knew no accelerators
(9131939): gpt on two replicas 0.984 and on two stages 0.987, cnn 0.981 and 0.967.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TREE = Path(__file__).parents[2]
RUN = "from pyrannc.cli import main; main()"
PLANS = {
    "2 replicas": {"partition_num": 1, "replica_nums": [2], "pipeline_num": 1},
    "2 stages": {"partition_num": 2, "replica_nums": [1, 1], "pipeline_num": 4},
}
WARM_UP, STEPS = 4, 8


def measured(tree, models, folder):
    """The median milliseconds of a step, by model and plan, of two ranks of ``tree``."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "RANNC_PROFILE_CACHE": str(folder / ("here" if tree == TREE else "there")),
    }
    found = subprocess.run(
        [sys.executable, "-c", RUN, "run", "-n", "2", __file__, str(tree), "--steps-of", *models],
        env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    (line,) = (line for line in found.stdout.splitlines() if line.startswith("{"))
    return json.loads(line)


def steps(tree, models):
    """On each of the ranks."""
    import torch

    import pyrannc

    assert Path(pyrannc.__file__).is_relative_to(tree), pyrannc.__file__
    sys.path.insert(0, str(TREE / "benchmarks" / "runtime"))
    from models import MODELS, WithLoss

    torch.set_num_threads(1)
    found = {}
    for name in models:
        torch.manual_seed(0)
        layers, batch = MODELS[name]
        layers, batch = layers(), batch(torch.Generator().manual_seed(0))
        rows = [tensor.chunk(2)[pyrannc.get_rank()] for tensor in batch]
        for plan, settings in PLANS.items():
            model = WithLoss(copy.deepcopy(layers))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            config = pyrannc.Config(self_check=False, calibrate=False, schedule="1f1b", **settings)
            model = pyrannc.RaNNCModule(model, optimizer, config)
            times = []
            for _ in range(WARM_UP + STEPS):
                pyrannc.barrier()
                begin = time.perf_counter()
                optimizer.zero_grad()
                model(*rows).backward()
                optimizer.step()
                pyrannc.barrier()
                times.append(1e3 * (time.perf_counter() - begin))
            found[f"{name}, {plan}"] = statistics.median(times[WARM_UP:])
    if pyrannc.get_rank() == 0:
        print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="a built tree")
    parser.add_argument("--models", nargs="+", default=["gpt", "cnn"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-of", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps_of:
        return steps(options.other, options.steps_of)
    folder = TREE / "build-bench" / "costs"
    trees = options.other.resolve(), TREE
    rounds = [
        [measured(tree, options.models, folder) for tree in trees] for _ in range(options.rounds)
    ]
    for case in rounds[0][0]:
        before, here = (statistics.median(each[i][case] for each in rounds) for i in (0, 1))
        print(f"{case}: {before:.1f} ms there, {here:.1f} ms here, {here / before:.3f} x as long")


if __name__ == "__main__":
    main()
