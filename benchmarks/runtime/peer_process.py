"""The peers of peers.py: plain PyTorch, in a process of its own beside each rank.

    python benchmarks/runtime/peer_process.py gpt     # of peers.py; reads commands, one a line

So they train as their users would have it: RaNNC changes settings of its process (malloc's).
"""

import copy
import json
import sys
import time

import torch
import torch.distributed as dist
from models import MODELS, WithLoss, loss_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 8


class Peer:
    """One way to train the model: `step()` runs on every rank."""

    def __init__(self, layers, batch):
        self.batch = batch
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.build(copy.deepcopy(layers))

    def own_rows(self):
        rows = self.batch[0].shape[0] // self.world
        return tuple(t[self.rank * rows : (self.rank + 1) * rows] for t in self.batch)

    def adamw(self, module):
        self.model = module
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def peak_mib(self):
        """Of the next step, on this rank."""
        from pyrannc import _C
        from pyrannc.report import training_steps  # not before: its steps are timed without it

        self.optimizer.zero_grad()
        held = training_steps.held_bytes(self.model, [self.optimizer])
        with _C.runtime.MemoryRecorder() as memory:
            self.step()
        return (held + memory.peak_bytes) / 2**20

    def process_mib(self):
        """What this process takes at most in the next step, as the system counts."""
        from pyrannc.job import process
        from pyrannc.report import resident_memory

        process.restart_resident_peak()
        self.step()
        return resident_memory.peak_bytes() / 2**20


class Eager(Peer):
    """One process on the whole batch; the other ranks wait."""

    def build(self, layers):
        self.adamw(WithLoss(layers))

    def step(self):
        if self.rank != 0:
            return
        self.optimizer.zero_grad()
        self.model(*self.batch).backward()
        self.optimizer.step()


class DataParallel(Peer):
    def build(self, layers):
        self.adamw(WithLoss(layers))
        self.parallel = DistributedDataParallel(self.model)

    def step(self):
        self.optimizer.zero_grad()
        self.parallel(*self.own_rows()).backward()
        self.optimizer.step()


class Pipelining(Peer):
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


PEERS = {
    "eager, one process": Eager,
    "DDP (gloo)": DataParallel,
    "pipelining GPipe": PipeliningGPipe,
    "pipelining 1F1B": Pipelining1F1B,
}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    make, batch = MODELS[sys.argv[1]]
    layers, data = make(), batch(torch.Generator().manual_seed(1))
    peers = {}
    for line in sys.stdin:
        command, name, *arguments = json.loads(line)
        answer = None
        if command == "build":
            peers[name] = PEERS[name](layers, data)
        elif command == "turn":
            (count,) = arguments
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                peers[name].step()
            answer = (time.perf_counter() - begin) / count
        elif command == "peak":
            answer = peers[name].peak_mib()
        elif command == "process":
            answer = peers[name].process_mib()
        print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
