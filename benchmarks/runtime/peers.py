"""RaNNC against eager PyTorch, DistributedDataParallel and torch.distributed.pipelining, in turns.

    rannc run -n 2 benchmarks/runtime/peers.py --model gpt
    rannc run -n 1 benchmarks/runtime/peers.py --model gpt      # the interpreter against eager

One thread per rank, AdamW, one global batch for all. All contenders live in one job and take turns
step by step, so that a disturbance hits all of them alike; a time is the median over the rounds, of
the slowest rank. Budgets, on a quiet machine of two cores: one stage
on one rank at most 1.01 x eager, on "tiny" at least 1.5 x as fast; the automatic plan at least as
fast as the fastest peer; one stage x 2 replicas 1.03 x as fast as DDP; with a limit that forbids
replicas at least 1.15 x the better pipelining schedule on both GPTs and 1.0 x on the CNN.

Memory is the peak of tensor bytes on the fullest rank: parameters, optimizer state, and what lives
at the worst moment of a step.
"""

import argparse
import copy
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from models import MODELS, WithLoss, loss_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import pyrannc
from pyrannc import _C, launch, steps

MICRO_BATCHES = 8


class Contender:
    """One way to train the model: `step()` runs on every rank."""

    def __init__(self, name, layers, batch):
        self.name, self.batch, self.seconds = name, batch, []
        self.rank, self.world = pyrannc.get_rank(), pyrannc.get_world_size()
        self.build(copy.deepcopy(layers))

    def own_rows(self):
        rows = self.batch[0].shape[0] // self.world
        return tuple(t[self.rank * rows : (self.rank + 1) * rows] for t in self.batch)

    def adamw(self, module):
        self.model = module
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def peak_mib(self):
        """Of the next step, on this rank."""
        self.optimizer.zero_grad()
        held = steps.held_bytes(self.model, self.optimizer)
        with _C.runtime.MemoryRecorder() as memory:
            self.step()
        return (held + memory.peak_bytes) / 2**20


class Eager(Contender):
    """One process on the whole batch; the other ranks wait."""

    def build(self, layers):
        self.adamw(WithLoss(layers))

    def step(self):
        if self.rank != 0:
            return
        self.optimizer.zero_grad()
        self.model(*self.batch).backward()
        self.optimizer.step()


class DataParallel(Contender):
    def build(self, layers):
        self.adamw(WithLoss(layers))
        self.parallel = DistributedDataParallel(self.model)

    def step(self):
        self.optimizer.zero_grad()
        self.parallel(*self.own_rows()).backward()
        self.optimizer.step()


class Pipelining(Contender):
    """Equal layer counts, the whole batch enters at rank 0."""

    schedule_class = None

    def build(self, layers):
        count = len(layers)
        begin, end = (count * rank // self.world for rank in (self.rank, self.rank + 1))
        self.adamw(torch.nn.Sequential(*layers[begin:end]))
        stage = PipelineStage(self.model, self.rank, self.world, torch.device("cpu"))
        self.schedule = self.schedule_class(stage, MICRO_BATCHES, loss_fn=loss_of)

    def step(self):
        self.optimizer.zero_grad()
        if self.rank == 0:
            self.schedule.step(self.batch[0])
        elif self.rank == self.world - 1:
            self.schedule.step(target=self.batch[1], losses=[])
        else:
            self.schedule.step()
        self.optimizer.step()


class PipeliningGPipe(Pipelining):
    schedule_class = ScheduleGPipe


class Pipelining1F1B(Pipelining):
    schedule_class = Schedule1F1B


class Rannc(Contender):
    def build(self, layers, **settings):
        model = WithLoss(layers)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model = pyrannc.RaNNCModule(
            model, self.optimizer, pyrannc.Config(self_check=False, **settings)
        )

    def step(self):
        self.optimizer.zero_grad()
        self.model(*self.own_rows()).backward()
        self.optimizer.step()

    def peak_mib(self):
        with pyrannc.measure(self.model) as measured:
            self.step()
        return max(measured.peak_mib)


class RanncOneStage(Rannc):
    def build(self, layers):
        super().build(layers, partition_num=1, replica_nums=[self.world], pipeline_num=1)


class RanncLimited(Rannc):
    """A limit between what two stages need and what one needs for its state alone."""

    def build(self, layers):
        state = 4 * sum(p.nbytes for layer in layers for p in layer.parameters())
        super().build(layers, mem_limit_gb=0.98 * state / 2**30, mem_margin=0.0)


CONTENDERS = {
    1: {"eager": Eager, "rannc": RanncOneStage},
    2: {
        "eager, one process": Eager,
        "DDP (gloo)": DataParallel,
        "pipelining GPipe": PipeliningGPipe,
        "pipelining 1F1B": Pipelining1F1B,
        "rannc, 1 stage x 2": RanncOneStage,
        "rannc, automatic": Rannc,
        "rannc, limited": RanncLimited,
    },
}


def timed_step(contender):
    pyrannc.barrier()
    begin = time.perf_counter()
    contender.step()
    pyrannc.barrier()
    contender.seconds.append(time.perf_counter() - begin)


def describe(contender):
    if not isinstance(contender, Rannc):
        return ""
    plan = contender.model.plan
    return (
        f"{'+'.join(str(len(stage.ranks)) for stage in plan.stages)}, "
        f"{plan.micro_batches} micro-batches, {json.loads(plan.to_json())['schedule']}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", help="names of contenders")
    parser.add_argument("--json", help="where rank 0 writes the figures")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    rank, world = pyrannc.get_rank(), pyrannc.get_world_size()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    dist.init_process_group("gloo", rank=rank, world_size=world)

    torch.manual_seed(0)
    make, batch = MODELS[arguments.model]
    layers, data = make(), batch(torch.Generator().manual_seed(1))
    contenders = [
        kind(name, layers, data)
        for name, kind in CONTENDERS[world].items()
        if not arguments.only or name in arguments.only
    ]
    for contender in contenders:  # first steps: planning, buckets, caches
        contender.step()
        contender.step()
    for _ in range(arguments.rounds):
        for contender in contenders:
            timed_step(contender)

    figures = {}
    for contender in contenders:
        mine = json.dumps([statistics.median(contender.seconds), contender.peak_mib()])
        ranks = [json.loads(item) for item in launch.world().all_gather(mine.encode())]
        figures[contender.name] = {
            "ms": 1e3 * max(seconds for seconds, _ in ranks),
            "peak_mib": max(mib for _, mib in ranks),
            "plan": describe(contender),
        }
    if rank == 0:
        base = next(iter(figures.values()))["ms"]
        print(f"{arguments.model} on {world} ranks, {os.cpu_count()} cores")
        for name, row in figures.items():
            print(
                f"{name:20} {row['ms']:9.1f} ms {base / row['ms']:6.2f} x  "
                f"{row['peak_mib']:8.1f} MiB  {row['plan']}"
            )
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({"model": arguments.model, "ranks": world, "figures": figures}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
