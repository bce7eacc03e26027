"""What a trace of training steps costs.

    rannc run -n 2 benchmarks/runtime/trace_cost.py

Budget: 2 % of a step. A small GPT in two stages of eight micro-batches trains in turns of eight
steps, one without a trace and one inside of `with pyrannc.trace(model, path)`, until the file is
written; what is compared are the medians of the turns. On a machine with other guests these differ
by more than the budget, so beside them stands the processor's time that the trace's own functions
take, as a share of that of the whole turn: other guests have no part in it.
"""

import argparse
import json
import statistics
import tempfile
import time

import torch
from models import WithLoss, gpt_layers, tokens

import pyrannc
from pyrannc.report.trace import Trace

STEPS = 8  # of a turn


class Own:
    """Processor seconds of this thread in some of a trace's functions."""

    def __init__(self, names):
        self.seconds, self._depth = 0.0, 0
        for name in names:
            setattr(Trace, name, self._timed(getattr(Trace, name)))

    def _timed(self, function):
        def call(*arguments):
            begin, self._depth = time.thread_time(), self._depth + 1
            try:
                return function(*arguments)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.thread_time() - begin

        return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = pyrannc.get_world_size()
    layers = gpt_layers(4, options.width, 64, 512)
    batch = tokens(32, 64, 512)(torch.Generator().manual_seed(pyrannc.get_rank()))
    model = WithLoss(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    config = pyrannc.Config(
        partition_num=world, replica_nums=[1] * world, pipeline_num=8, calibrate=False
    )
    model = pyrannc.RaNNCModule(model, optimizer, config)

    def steps():
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(*batch).backward()
            optimizer.step()

    def turn(work):
        pyrannc.barrier()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - begin, time.process_time() - begin_cpu

    steps()
    own = Own(["__init__", "step_begins", "mark", "finish"])
    with tempfile.TemporaryDirectory() as folder:

        def traced():
            with pyrannc.trace(model, f"{folder}/trace.json"):
                steps()

        plain, with_trace = [], []
        for _ in range(options.rounds):
            plain.append(turn(steps))
            with_trace.append(turn(traced))
        if pyrannc.get_rank() == 0:
            with open(f"{folder}/trace.json") as file:
                actions = sum(event["ph"] == "X" for event in json.load(file))
    if pyrannc.get_rank() == 0:
        walls = [statistics.median(wall for wall, _ in turns) for turns in (plain, with_trace)]
        cpu = sum(cpu for _, cpu in with_trace)
        print(f"a step takes {1e3 * walls[0] / STEPS:.1f} ms without a trace")
        print(f"{actions / STEPS:.0f} bars a step, of {world} ranks")
        print(f"time of steps with a trace: {100 * (walls[1] / walls[0] - 1):+.2f} %")
        print(f"processor's time of the trace itself: {100 * own.seconds / cpu:.2f} % of rank 0's")


if __name__ == "__main__":
    main()
