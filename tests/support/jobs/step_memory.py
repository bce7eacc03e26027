"""One rank of predict/test_step_memory.py: steps of several plans, predicted and measured."""

import json
import operator
import sys
from pathlib import Path

import torch

import pyrannc
from pyrannc import launch

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from train_gpt import GPT

MIB = 2**20
#: Without a new least, after which there is none.
STEPS = 21

#: name -> (schedule, stages, micro-batches, recompute, and more)
PLANS = {
    "interleaved, 12 stages": ("interleaved", 12, 16, "never"),
    "interleaved, 12 stages, recomputed": ("interleaved", 12, 16, "always"),
    "interleaved, 8 stages": ("interleaved", 8, 16, "never"),
    "1f1b": ("1f1b", 4, 16, "never"),
    "gpipe": ("gpipe", 4, 8, "never"),
    "replicas": ("1f1b", 2, 4, "never", [2, 2]),
    "replicas, shared state": ("1f1b", 2, 4, "never", [2, 2], True),
    "uneven replicas, shared state": ("1f1b", 2, 4, "always", [3, 1], True),
    "four replicas, shared state": ("gpipe", 1, 1, "never", [4], True),
}


def train(schedule, stages, micro_batches, recompute, replicas=None, zero=False):
    """MiB of each stage's ranks: predicted, by the account of section 7 of docs/planner-files.md,
    and measured."""
    torch.manual_seed(0)
    plain = GPT()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    model = pyrannc.RaNNCModule(
        plain,
        optimizer,
        pyrannc.Config(
            partition_num=stages,
            replica_nums=replicas or [1] * stages,
            pipeline_num=micro_batches,
            schedule=schedule,
            recompute=recompute,
            calibrate=False,
            self_check=False,
        ),
        zero=zero,
    )
    tokens = torch.randint(256, (4, 128), generator=torch.Generator().manual_seed(1))

    def step():
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        optimizer.step()

    for _ in range(2):
        step()
    # On a busy machine messages are late in most steps: it goes on until the least stays.
    least = most = None
    steps_left = STEPS
    while steps_left:
        with pyrannc.measure(model, optimizer) as measured:
            step()
        peaks, steps_left = measured.peak_mib, steps_left - 1
        if least is None or any(map(operator.lt, peaks, least)):
            steps_left = STEPS
        least = [*map(min, peaks, least or peaks)]
        most = [*map(max, peaks, most or peaks)]
    return {
        "ranks": sorted({rank for stage in model.plan.stages for rank in stage.ranks}),
        "shared": model.plan.shard_optimizer,
        "predicted": [peak / MIB for peak in model.plan.step.peak_bytes],
        "account": [stage.predicted.peak_bytes / MIB for stage in model.plan.stages],
        "least": least,
        "most": most,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {name: train(*PLANS[name]) for name in sys.argv[1:]}
    if launch.get_rank() == 0:
        print(json.dumps(found))
