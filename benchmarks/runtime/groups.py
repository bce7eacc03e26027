"""How much faster a model is whose vocabulary is most of it, where ranks compute its head together.

    rannc run -n 2 benchmarks/runtime/groups.py

A GPT of width 256 and 50,257 words, 4 rows of 128 on all ranks together, with AdamW: once as
RaNNC's best plan in which each rank computes whole layers, once as tensor_parallel="auto" decides.
The two take turns, so that whatever else the machine does meets both. The figures are the median of
the ratios of neighbours, as the slower rank sees them, and the ratio of the bytes that the fuller
rank holds for parameters, gradients and the optimizer's state. Predictions are of cores that nobody
else uses: where the processor's time is far below the clock's, something else runs.
"""

import argparse
import statistics
import time

import torch
from models import gpt_layers
from torch import nn

import pyrannc
from pyrannc import launch
from pyrannc.ranks import gathered


class WithLoss(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        layers = gpt_layers(arguments.layers, arguments.width, arguments.length, arguments.words)
        self.layers = nn.Sequential(*layers)

    def forward(self, tokens):
        logits = self.layers(tokens)[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Way:
    """The model as one setting of tensor_parallel trains it."""

    def __init__(self, setting, tokens, arguments):
        torch.manual_seed(0)
        model = WithLoss(arguments)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        config = pyrannc.Config(
            tensor_parallel=setting, mem_limit_gb=arguments.memory, profile_cache="off"
        )
        self.model, self.tokens = pyrannc.RaNNCModule(model, self.optimizer, config), tokens
        begin = time.perf_counter()
        self.step()
        self.first_s = time.perf_counter() - begin

    def step(self):
        self.optimizer.zero_grad()
        self.model(self.tokens).backward()
        self.optimizer.step()

    def seconds(self):
        """Of one step, on the slowest rank: by the clock, and of its processor."""
        world = launch.world()
        world.barrier()
        begin = time.perf_counter(), time.process_time()
        self.step()
        passed = time.perf_counter() - begin[0], time.process_time() - begin[1]
        return tuple(map(max, zip(*gathered(world, passed), strict=True)))

    def held_mib(self):
        """Of parameters, gradients and state, on the fullest rank."""
        plan, world = self.model.plan, launch.world()
        mine = [stage.predicted for stage in plan.stages if world.rank in stage.ranks]
        held = sum(2 * each.param_bytes + each.optimizer_bytes for each in mine)
        return max(gathered(world, held)) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--words", type=int, default=50_257)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", type=float, default=0.0, help="of a rank, in GiB; 0: no limit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size, rank = launch.get_world_size(), launch.get_rank()
    torch.manual_seed(1)
    tokens = torch.randint(arguments.words, (arguments.rows, arguments.length))
    mine = tokens.tensor_split(size)[rank]
    ways = {setting: Way(setting, mine, arguments) for setting in ("none", "auto")}
    times, computed = ({setting: [] for setting in ways} for _ in range(2))
    for _ in range(arguments.rounds):
        for setting, way in ways.items():
            passed, of_processor = way.seconds()
            times[setting].append(passed)
            computed[setting].append(of_processor)
    held = {setting: way.held_mib() for setting, way in ways.items()}
    if rank == 0:
        for setting, way in ways.items():
            plan = way.model.plan
            print(
                f"{setting}: groups of {plan.stages[0].places}, "
                f"{statistics.median(times[setting]) * 1e3:.0f} ms a step "
                f"({statistics.median(computed[setting]) * 1e3:.0f} of the processor, "
                f"predicted {plan.step.ns / 1e6:.0f}), {held[setting]:.1f} MiB, "
                f"first call {way.first_s:.1f} s"
            )
        ratios = [none / auto for none, auto in zip(times["none"], times["auto"], strict=True)]
        print(
            f"auto is {statistics.median(ratios):.2f} x as fast, with "
            f"{held['auto'] / held['none']:.0%} of the bytes"
        )


if __name__ == "__main__":
    main()
