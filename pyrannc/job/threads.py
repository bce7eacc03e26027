"""How many threads of torch a rank uses."""

import json
import os

import torch

from pyrannc import log


def share_cores(world, hosts) -> None:
    """Cores of the host over its ranks, unless OMP_NUM_THREADS says otherwise or torch uses less.

    Threads of several ranks on the same cores spin at each other's barriers. Collective.

    Args:
        world: All ranks.
        hosts: Name of each rank's host.
    """
    mine = os.sched_getaffinity(0)
    cores = [set(json.loads(item)) for item in world.all_gather(json.dumps([*mine]).encode())]
    if "OMP_NUM_THREADS" in os.environ:
        return
    ranks = [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]]
    here = set().union(*(cores[rank] for rank in ranks))  # ranks may be bound to some of them
    threads = max(1, min(len(mine), len(here) // len(ranks)))
    if threads >= torch.get_num_threads():
        return
    torch.set_num_threads(threads)
    if world.rank == 0:
        log.info(
            "deploy",
            f"{threads} thread{'s' * (threads > 1)} of torch per rank, for {len(here)} cores and "
            f"{len(ranks)} ranks on this host; OMP_NUM_THREADS sets another number",
        )
