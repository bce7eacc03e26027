"""How much longer a step is whose replicas share the optimizer's state.

    rannc run -n 2 benchmarks/runtime/shared_state.py

A GPT that both ranks hold, with AdamW: once every replica steps all of it, once each steps its
shard (zero=True). The two take turns, so that whatever else the machine does meets both; the
figure is the median of the ratios of neighbours, as the slower rank sees them.

On two quiet cores a step was 0.994 and 1.009 x as long in two runs, and 1.020 x with
`--layers 4 --width 256 --rows 4 --rounds 40`; beside other work (load 7 to 10) 1.08.

The last figure is the share of such a step in which parameters are gathered at its end: the most
that a gather beside the next forward could save. It was 2.9 % on two quiet cores, 2.6 and 2.7 %
beside other work.
"""

import argparse
import os
import statistics
import time

import torch
from models import gpt_layers
from torch import nn

import pyrannc
from pyrannc import launch
from pyrannc.optimizer.step.shards import ShardedSteps

WORDS, LENGTH = 4096, 128


class WithLoss(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        layers = gpt_layers(arguments.layers, arguments.width, LENGTH, WORDS)
        self.layers = nn.Sequential(*layers)

    def forward(self, tokens):
        logits = self.layers(tokens)[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def wrapped(zero, arguments):
    torch.manual_seed(0)
    model = WithLoss(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    config = pyrannc.Config(
        partition_num=1,
        replica_nums=[launch.get_world_size()],
        pipeline_num=1,
        calibrate=False,
        self_check=False,
    )
    return pyrannc.RaNNCModule(model, optimizer, config, zero=zero), optimizer


def seconds(model, optimizer, tokens):
    """Of one step, on the slowest rank."""
    world = launch.world()
    world.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(tokens).backward()
    optimizer.step()
    world.barrier()
    return time.perf_counter() - begin


def timed_gathers():
    """The seconds that each gather takes from here on."""
    taken, gather = [], ShardedSteps.gather

    def timed(*args):
        begin = time.perf_counter()
        gather(*args)
        taken.append(time.perf_counter() - begin)

    ShardedSteps.gather = timed
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--rows", type=int, default=8, help="of each rank")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    pair = [wrapped(zero, arguments) for zero in (False, True)]
    torch.manual_seed(launch.get_rank())
    tokens = torch.randint(WORDS, (arguments.rows, LENGTH))
    for each in pair:
        for _ in range(3):
            seconds(*each, tokens)
    gathers = timed_gathers()
    times = [[seconds(*each, tokens) for each in pair] for _ in range(arguments.rounds)]
    if launch.get_rank() > 0:
        return
    alone, shared = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
    ratio = statistics.median(second / first for first, second in times)
    print(
        f"{launch.get_world_size()} ranks, {os.cpu_count()} cores: {alone:.0f} ms alone, "
        f"{shared:.0f} ms with shared state; {ratio:.3f} x as long; the gather is "
        f"{1e5 * statistics.median(gathers) / shared:.1f} % of it"
    )


if __name__ == "__main__":
    main()
