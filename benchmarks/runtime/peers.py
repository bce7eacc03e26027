"""RaNNC against eager PyTorch, DistributedDataParallel and torch.distributed.pipelining, in turns.

    rannc run -n 2 benchmarks/runtime/peers.py --model gpt
    rannc run -n 1 benchmarks/runtime/peers.py --model gpt      # the interpreter against eager

One thread per rank, AdamW, one global batch for all. All contenders take turns, so that a
disturbance hits all of them alike; the peers run in a process of their own beside each rank, as
RaNNC changes settings of its process. A turn is one step, or as many as take a tenth of a second:
the first steps after another process do not find their instructions in the caches. The time of a
turn is that of its slowest rank; shown are the median over the rounds, and what a quarter of the
turns stay below: on a machine with other guests that is closer to what it does undisturbed.

Budgets, on a quiet machine of two cores: one stage on one rank at most 1.01 x eager, on "tiny" at
least 1.5 x as fast; the automatic plan at least as fast as the fastest peer; one stage x 2 replicas
1.03 x as fast as DDP; with a limit that forbids replicas and is at most the memory of the 1F1B peer
("limited"), or with that memory and two stages ("2 stages"), at least 1.15 x the better pipelining
schedule on both GPTs and 1.0 x on the CNN. The four ratios follow the table.

Memory is the peak of tensor bytes on the fullest rank: parameters, optimizer state, and what lives
at the worst moment of a step. Beside it stands what the whole process takes, which all contenders
of its side share: `--only` makes it that of one. After that come the predictions of RaNNC's plans
beside what is measured, with budgets of 10 % of the time, 5 % of the memory, 10 points of a rank's
idle share.
"""

import argparse
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from models import MODELS, WithLoss

import pyrannc
from pyrannc import launch

TURN_S = 0.1
# For what is compared with predictions.
MEASURED_STEPS = 5
# By number of ranks; see peer_process.py.
PEERS = {
    1: ["eager, one process"],
    2: ["eager, one process", "DDP (gloo)", "pipelining GPipe", "pipelining 1F1B"],
}


class Contender:
    """One way to train the model: `turn(count)` runs that many steps on every rank, and returns the
    seconds of one step.
    """

    def __init__(self, name):
        self.name, self.seconds = name, []


class Peer(Contender):
    """Of peer_process.py."""

    plan = ""

    def __init__(self, name, process):
        super().__init__(name)
        self.process = process
        process.ask("build", name)

    def turn(self, count=1):
        return self.process.ask("turn", self.name, count)

    def peak_mib(self):
        return self.process.ask("peak", self.name)

    def measure(self):
        """The peaks, and nothing to say about predictions."""
        process_mib = self.process.ask("process", self.name)
        return self.peak_mib(), process_mib, ""


class PeerProcess:
    """Answers commands; those of all ranks are one process group."""

    def __init__(self, model):
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_"))
        }
        self.process = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).with_name("peer_process.py"), model],
            env={
                **kept,
                "RANK": str(pyrannc.get_rank()),
                "WORLD_SIZE": str(pyrannc.get_world_size()),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": os.environ.get("MASTER_PORT", "29517"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Rannc(Contender):
    def __init__(self, name, layers, batch, **settings):
        super().__init__(name)
        rank, rows = pyrannc.get_rank(), batch[0].shape[0] // pyrannc.get_world_size()
        self.batch = tuple(t[rank * rows : (rank + 1) * rows] for t in batch)
        model = WithLoss(copy.deepcopy(layers))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model = pyrannc.RaNNCModule(
            model, self.optimizer, pyrannc.Config(self_check=False, **settings)
        )

    def turn(self, count=1):
        pyrannc.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(*self.batch).backward()
            self.optimizer.step()
        return (time.perf_counter() - begin) / count

    def measure(self):
        """The peaks in MiB, and what was predicted beside what is measured."""
        with pyrannc.measure(self.model) as measured:
            self.turn(MEASURED_STEPS)
        return max(measured.peak_mib), max(measured.resident_mib), str(measured)

    @property
    def plan(self):
        plan = json.loads(self.model.plan.to_json())
        return (
            f"{'+'.join(str(len(stage['ranks'])) for stage in plan['stages'])}, "
            f"{plan['micro_batches']} micro-batches, {plan['schedule']}"
        )


def rannc_settings(layers, batch, peak_mib):
    """Of each way to use RaNNC. ``peak_mib()``: of the 1F1B peer."""
    world = pyrannc.get_world_size()
    one_stage = {"partition_num": 1, "replica_nums": [world]}
    if world == 1:
        return {"rannc": {**one_stage, "pipeline_num": 1}}
    as_1f1b = {"mem_limit_gb": peak_mib() / 2**10, "mem_margin": 0.0}
    try:
        Rannc("", layers, batch, calibrate=False, **one_stage, **as_1f1b).turn()
    except pyrannc.InfeasibleError:
        limited = as_1f1b
    else:  # replicas fit, too: a limit that is too small for their state
        state = 4 * sum(p.nbytes for layer in layers for p in layer.parameters())
        limited = {"mem_limit_gb": 0.98 * state / 2**30, "mem_margin": 0.0}
    return {
        "rannc, 1 stage x 2": {**one_stage, "pipeline_num": 1},
        "rannc, automatic": {},
        "rannc, limited": limited,
        "rannc, 2 stages": {"partition_num": 2, "replica_nums": [1, 1], **as_1f1b},
    }


def largest(value):
    """Of the values of all ranks."""
    values = launch.world().all_gather(json.dumps(value).encode())
    return max(json.loads(item) for item in values)


def times(contender):
    """Median and lower quartile of the slowest rank's seconds, in milliseconds."""
    everywhere = launch.world().all_gather(json.dumps(contender.seconds).encode())
    turns = [1e3 * max(turn) for turn in zip(*map(json.loads, everywhere), strict=True)]
    return statistics.median(turns), statistics.quantiles(turns, n=4)[0]


# (name, what is at most as fast, what should be faster)
GOALS = [
    ("fastest peer / automatic", PEERS[2], "rannc, automatic"),
    ("DDP / one stage x 2", ["DDP (gloo)"], "rannc, 1 stage x 2"),
    ("better pipelining / limited", PEERS[2][2:], "rannc, limited"),
    ("better pipelining / two stages", PEERS[2][2:], "rannc, 2 stages"),
    ("eager / one stage", PEERS[1], "rannc"),
]


def print_ratios(figures):
    """Of every goal whose contenders have run."""
    for name, peers, ours in GOALS:
        if ours not in figures or not set(peers) <= set(figures):
            continue
        by_median, by_quarter = (
            min(figures[peer][key] for peer in peers) / figures[ours][key]
            for key in ("ms", "quarter_ms")
        )
        print(f"{name:31} {by_median:5.2f}, of the faster quarters {by_quarter:5.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", help="names of contenders")
    parser.add_argument("--json", help="where rank 0 writes the figures")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    rank, world = pyrannc.get_rank(), pyrannc.get_world_size()
    torch.manual_seed(0)
    make, batch = MODELS[arguments.model]
    layers, data = make(), batch(torch.Generator().manual_seed(1))

    def wanted(name):
        return not arguments.only or name in arguments.only

    process = PeerProcess(arguments.model)
    contenders = {name: Peer(name, process) for name in PEERS[world] if wanted(name)}

    def peak_of_1f1b():
        peer = contenders.get(PEERS[world][-1]) or Peer(PEERS[world][-1], process)
        peer.turn()
        return largest(peer.peak_mib())

    for name, settings in rannc_settings(layers, data, peak_of_1f1b).items():
        if wanted(name):
            contenders[name] = Rannc(name, layers, data, **settings)
    contenders = list(contenders.values())
    for contender in contenders:  # first steps: planning, buckets, caches
        contender.turn()
        contender.turn()
    fastest = min(largest(contender.turn()) for contender in contenders)
    count = max(1, round(TURN_S / fastest))
    for _ in range(arguments.rounds):
        for contender in contenders:
            contender.seconds.append(contender.turn(count))

    figures = {}
    for contender in contenders:
        peak_mib, process_mib, predictions = contender.measure()
        median, quarter = times(contender)
        figures[contender.name] = {
            "ms": median,
            "quarter_ms": quarter,
            "peak_mib": largest(peak_mib),
            "process_mib": largest(process_mib),
            "plan": contender.plan,
            "predictions": predictions,
        }
    process.end()
    if rank == 0:
        base = next(iter(figures.values()))["ms"]
        print(f"{arguments.model} on {world} ranks, {os.cpu_count()} cores")
        for name, row in figures.items():
            print(
                f"{name:20} {row['ms']:9.1f} ms ({row['quarter_ms']:.1f}) "
                f"{base / row['ms']:6.2f} x  {row['peak_mib']:8.1f} MiB, "
                f"{row['process_mib']:7.1f} in all  {row['plan']}"
            )
        print_ratios(figures)
        for name, row in figures.items():
            if row["predictions"]:
                print(f"{name}: {row['predictions']}")
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({"model": arguments.model, "ranks": world, "figures": figures}, file)


if __name__ == "__main__":
    main()
