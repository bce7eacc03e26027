"""One rank of the soak: training for a long time, in ways that change from step to step.

    rannc run -n 4 tests/support/jobs/soak.py --minutes 30

Two models under different plans train beside their twins, which one process runs on all rows.
Every step draws anew: rows of each rank (also none), length of the sequences, which labels count,
how many forwards come before the optimizer's step, with or without no_sync(), calls in eval mode
and under no_grad() in between, existing gradients. Rank 0 prints one line of JSON at the end: the
largest difference from the twins, and the resident memory of each rank after a quarter of the time
and at the end.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import random
import time

import torch
from torch import nn
from torch.nn import functional

import pyrannc
from pyrannc import launch

WIDTH, WORDS, LENGTHS = 16, 20, (3, 5, 8)
MOST_ROWS = 5
PLANS = {
    "1f1b, [1, 2, 1]": {"replica_nums": [1, 2, 1], "pipeline_num": 3, "schedule": "1f1b"},
    "gpipe, [2, 2]": {"replica_nums": [2, 2], "pipeline_num": 2, "schedule": "gpipe"},
    "1f1b, [4]": {
        "replica_nums": [4],
        "pipeline_num": 2,
        "schedule": "1f1b",
        "recompute": "always",
    },
}


class Net(nn.Module):
    """Mean over the words that count, of a model with a residual connection and a tied head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))

    def forward(self, words, labels):
        x = self.words(words)
        for mixer, norm in zip(self.mixers, self.norms, strict=True):
            x = x + torch.tanh(mixer(norm(x.cumsum(1))))
        logits = x @ self.words.weight.t()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


def make(settings):
    """A wrapped model and its twin, with their optimizers."""
    pair = []
    for wrapped in (True, False):
        torch.manual_seed(5)
        model = Net().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)
        if wrapped:
            settings = {"partition_num": len(settings["replica_nums"]), **settings}
            config = pyrannc.Config(self_check=False, calibrate=False, **settings)
            model = pyrannc.RaNNCModule(model, optimizer, config)
        pair.append((model, optimizer))
    return pair


def draw_batch(chance, ranks):
    """(rows of each rank, words, labels) of all ranks; at least one label counts."""
    rows = [chance.randrange(MOST_ROWS + 1) for _ in range(ranks)]
    rows[chance.randrange(ranks)] += 1
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    shape = (sum(rows), chance.choice(LENGTHS))
    words = torch.randint(WORDS, shape, generator=generator)
    labels = torch.randint(WORDS, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.3] = -1
    labels[0, 0] = 1
    return rows, words, labels


class Soak:
    def __init__(self, settings, rank, ranks):
        self.rank, self.ranks = rank, ranks
        (self.model, self.optimizer), (self.twin, self.twin_optimizer) = make(settings)
        self.steps, self.difference = 0, 0.0

    def both(self, batch):
        """The losses of both sides."""
        rows, words, labels = batch
        begin = sum(rows[: self.rank])
        own = slice(begin, begin + rows[self.rank])
        ours, expected = self.model(words[own], labels[own]), self.twin(words, labels)
        self.compare(ours, expected)
        return ours, expected

    def compare(self, ours, expected):
        difference = (ours.detach() - expected.detach()).abs().max() / expected.abs().max()
        self.difference = max(self.difference, difference.item())

    def step(self, chance):
        """`chance` draws the same on all ranks."""
        set_to_none = chance.random() < 0.5
        for optimizer in (self.optimizer, self.twin_optimizer):
            optimizer.zero_grad(set_to_none=set_to_none)
        if chance.random() < 0.2:
            self.look(chance)
        forwards, kept = chance.randint(1, 3), chance.random() < 0.5
        for part in range(forwards):
            kept = kept and part < forwards - 1
            with self.model.no_sync() if kept else contextlib.nullcontext():
                ours, expected = self.both(draw_batch(chance, self.ranks))
                (ours / forwards).backward()
            (expected / forwards).backward()
            if chance.random() < 0.1:
                self.look(chance)
        self.optimizer.step()
        self.twin_optimizer.step()
        self.steps += 1

    def look(self, chance):
        """A call that does not train."""
        modes = contextlib.nullcontext() if chance.random() < 0.5 else torch.no_grad()
        for model in (self.model, self.twin):
            model.eval()
        with modes:
            self.both(draw_batch(chance, self.ranks))
        for model in (self.model, self.twin):
            model.train()

    def compare_parameters(self):
        expected = dict(self.twin.named_parameters())
        for name, parameter in self.model.named_parameters(from_global=False):
            self.compare(parameter, expected[name])


def resident_mib():
    """Without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status", encoding="utf-8") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 2**10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rank, ranks = pyrannc.get_rank(), pyrannc.get_world_size()
    soaks = {name: Soak(settings, rank, ranks) for name, settings in PLANS.items()}
    chance = random.Random(arguments.seed)
    begin, early = time.monotonic(), None
    while True:
        for soak in soaks.values():
            for _ in range(20):
                soak.step(chance)
            soak.compare_parameters()
        # Rank 0's clock is the one that counts.
        share = (time.monotonic() - begin) / (60 * arguments.minutes)
        share = float(launch.world().broadcast(str(share).encode(), 0))
        if early is None and share >= 0.25:
            early = resident_mib()
        if share >= 1:
            break
    mine = {
        "mib": [round(early, 1), round(resident_mib(), 1)],
        "difference": {name: soak.difference for name, soak in soaks.items()},
    }
    found = [json.loads(item) for item in launch.world().all_gather(json.dumps(mine).encode())]
    if rank == 0:
        report = {
            "steps": {name: soak.steps for name, soak in soaks.items()},
            "difference": {name: max(r["difference"][name] for r in found) for name in soaks},
            "mib": [r["mib"] for r in found],
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
