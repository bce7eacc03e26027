"""A GPT's training step over MPI, and over the connections that torchrun's ranks have.

    rannc run -n 2 benchmarks/runtime/transports.py [--model tiny]

Both in the same processes, in turns, so that a disturbance hits both alike: one model runs over
MPI, its copy over connections, as under torchrun, under the same plan. Two plans: two replicas,
whose gradients are summed, and two stages. Shown are the medians of the slowest rank, and of the
ratios of neighbouring turns. Budget: over connections at most 1.1 x.
"""

import copy
import statistics
import sys
import time

import torch
from models import MODELS, WithLoss

import pyrannc
from pyrannc import Config, RaNNCModule, launch
from pyrannc.job import started, torch_group

TURNS, STEPS = 20, 1  # turns of each, and steps of a turn
PLANS = {"2 replicas": [2], "2 stages": [1, 1]}


def main():
    torch.set_num_threads(1)
    rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
    if size != 2:
        sys.exit("two ranks: rannc run -n 2 benchmarks/runtime/transports.py")
    over_mpi = launch.world()
    launch.init()
    how = started.Started("c10d", rank, size, "torchrun")
    over_connections = torch_group.communicator(how, launch.TIMEOUT_S)
    make, batch = MODELS["tiny" if "tiny" in sys.argv else "gpt"]
    inputs, targets = batch(torch.Generator().manual_seed(0))
    for name, replicas in PLANS.items():
        torch.manual_seed(0)
        first = WithLoss(make())
        turns = {}
        for transport, world in (("MPI", over_mpi), ("connections", over_connections)):
            launch._world = world  # which the first call takes
            model = copy.deepcopy(first)
            optimizer = torch.optim.AdamW(model.parameters())
            config = Config(replica_nums=replicas, calibrate=False)
            model = RaNNCModule(model, optimizer, config)
            mine = [each.chunk(size)[rank] for each in (inputs, targets)]
            turns[transport] = step_of(model, optimizer, *mine)
            turns[transport]()
        seconds = {transport: [] for transport in turns}
        for _ in range(TURNS):
            for transport, step in turns.items():
                over_mpi.barrier()
                begin = time.perf_counter()
                for _ in range(STEPS):
                    step()
                mine = (time.perf_counter() - begin) / STEPS
                told = over_mpi.all_gather(repr(mine).encode())
                seconds[transport].append(max(map(float, told)))
        if rank == 0:
            mpi, connections = seconds.values()
            ratios = [b / a for a, b in zip(mpi, connections, strict=True)]
            print(
                f"{name}: MPI {1e3 * statistics.median(mpi):.1f} ms, connections "
                f"{1e3 * statistics.median(connections):.1f} ms, ratio "
                f"{statistics.median(ratios):.3f}, of the medians "
                f"{statistics.median(connections) / statistics.median(mpi):.3f}",
                flush=True,
            )
    launch._world = over_mpi


def step_of(model, optimizer, inputs, targets):
    def step():
        optimizer.zero_grad()
        model(inputs, targets).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
