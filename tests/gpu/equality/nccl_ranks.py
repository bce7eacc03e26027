"""The nccl backend between two processes: random plans against one process.

On one GPU NCCL refuses two ranks unless their hosts look different (NCCL_HOSTID), and nobody
promises that it works: what comes of it is recorded.
"""

import json
import os

import device
import nccl
import torch
from on_devices import equal, on_rank, one_process, problem

from pyrannc import _C, launch
from pyrannc.job import process

SEEDS = range(6)


def main():
    os.environ.setdefault("NCCL_HOSTID", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    process.order_nccl_launches()
    world = launch.world()
    world.timeout_s = 20
    place = device.start()
    file = str(nccl.FILE) if device.NAME == "standin" else ""
    comm = _C.runtime.nccl(world, str(place), file)
    failures = []
    for seed in SEEDS:
        made = problem(seed, ranks=world.size)
        found = on_rank(made, one_process(made), comm, str(place))
        wrong = [what for what, ours, theirs in found if not equal(ours, theirs)]
        failures += [f"seed {seed}: {what}" for what in wrong]
    everyone = [json.loads(each) for each in world.all_gather(json.dumps(failures).encode())]
    torch.accelerator.synchronize()
    if world.rank == 0:
        report = {
            "figures": {"plans": len(SEEDS)},
            "failures": [text for texts in everyone for text in texts],
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
