"""The group of torch.distributed, for what asks it who the ranks are."""

import contextlib
import datetime
import os
import socket

import torch.distributed

from pyrannc.job import launchers, process


def make(world, timeout_s: float) -> None:
    """Makes the default group over Gloo where there is none; with one rank there is nothing to do.

    Collective.
    """
    distributed = torch.distributed
    if world.size == 1 or not distributed.is_available():
        return
    if not distributed.is_initialized():
        set_variables(world)
        distributed.init_process_group(
            "gloo",
            rank=world.rank,
            world_size=world.size,
            timeout=datetime.timedelta(seconds=min(timeout_s, 1e6)),
        )
    launchers.check_group(world)


def set_variables(world) -> None:
    """Sets what torch's launcher would have set, where it is missing. Collective."""
    hosts = [item.decode() for item in world.all_gather(world.host.encode())]
    before = hosts[: world.rank].count(world.host)
    address = os.environ.get("MASTER_ADDR") or _own_address(len(set(hosts)) > 1)
    port = os.environ.get("MASTER_PORT") or str(free_port())
    address, port = world.broadcast(f"{address} {port}".encode(), 0).decode().split()
    found = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": before,
        "LOCAL_WORLD_SIZE": hosts.count(world.host),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    process.set_missing_variables(found)


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def _own_address(for_others: bool) -> str:
    return socket.gethostname() if for_others else "localhost"
