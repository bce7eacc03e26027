"""The group of torch.distributed, for what asks it who the ranks are."""

import contextlib
import datetime
import json
import os
import secrets
import socket

import torch.distributed

from pyrannc import _C
from pyrannc.errors import CommError
from pyrannc.job import addresses, fresh_store, launchers, process, started
from pyrannc.ranks import gathered, of_rank


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


def communicator(how, timeout_s: float):
    """The ranks of torch.distributed's group, which is made where there is none; over connections
    of our own, whose addresses the group has told. Collective.

    Operations of Gloo can neither be asked whether they are done nor be given up, and one that is
    not in time ends the connections of the user's group; so messages do not go through it.

    Args:
        how: ``started.Started`` with transport "c10d".
    """
    distributed = torch.distributed
    if not distributed.is_available():
        raise CommError(
            f"{how.launcher} started this process as rank {how.rank} of {how.size}, but this torch "
            "has no torch.distributed.\n  Start the script with mpirun or `rannc run`."
        )
    limit = datetime.timedelta(seconds=min(timeout_s, 1e6))
    if not distributed.is_initialized():
        process.set_missing_variables(started.torch_variables(how))
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise CommError(
                f"{how.launcher} started this process as rank {how.rank} of {how.size}, but "
                f"{' and '.join(missing)} are not set, so the ranks cannot meet.\n  Start the "
                "script with torchrun, mpirun or `rannc run`."
            )
        store, rank, size = next(distributed.rendezvous("env://", timeout=limit))
        store.set_timeout(limit)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
            store = fresh_store.of_this_start(store, rank, size, limit.total_seconds())
        hosts, address = _hosts(_by_store(store, rank, size), rank)
        if len(set(hosts)) > 1:  # else Gloo goes by the own name, which may be a loopback's
            process.set_missing_variables({"GLOO_SOCKET_IFNAME": addresses.interface(address)})
        store = distributed.PrefixStore("rannc/group", store)
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=limit
        )
    rank, size = distributed.get_rank(), distributed.get_world_size()
    is_gloo = distributed.get_backend() == "gloo"
    group = None if is_gloo else distributed.new_group(backend="gloo", timeout=limit)

    def all_say(mine):
        told = [None] * size
        distributed.all_gather_object(told, mine, group=group)
        return told

    hosts, address = _hosts(all_say, rank)
    listener = _C.comm.Listener(address)
    told = all_say((addresses.with_port(address, listener.port), secrets.token_hex(24)))
    places, words = zip(*told, strict=True)
    return _C.comm.make_sockets(
        listener, rank, places, hosts, words[0], timeout_s, start_timeout_s=timeout_s
    )


def _by_store(store, rank, size):
    """A function by which each rank says something to all, through ``store``."""

    def all_say(mine):
        store.set(f"rannc/place/{rank}", json.dumps(mine))
        return [json.loads(store.get(f"rannc/place/{other}")) for other in range(size)]

    return all_say


def _hosts(all_say, rank):
    """The name of each rank's host, which no other host has, and this rank's address for the
    others. Collective."""
    host = _C.comm.own_host()
    told = all_say((host.name, host.identity, addresses.to_meeting_place()))
    hosts = _C.comm.distinct_names([_C.comm.Host(*each[:2]) for each in told])
    if len(set(hosts)) == 1:
        return hosts, "127.0.0.1"
    elsewhere = [each[2] for name, each in zip(hosts, told, strict=True) if name != hosts[rank]]
    return hosts, addresses.for_others(told[rank][2], elsewhere)


def set_variables(world) -> None:
    """Sets what torch's launcher would have set, where it is missing. Collective."""
    hosts = gathered(world, world.host)
    before = hosts[: world.rank].count(world.host)
    address = os.environ.get("MASTER_ADDR") or _own_address(len(set(hosts)) > 1)
    port = os.environ.get("MASTER_PORT") or str(_free_port())
    address, port = of_rank(0, world, (address, port))
    found = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": before,
        "LOCAL_WORLD_SIZE": hosts.count(world.host),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    process.set_missing_variables(found)


def _free_port() -> int:
    """A port of this host that nobody listens on now."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def _own_address(for_others: bool) -> str:
    return socket.gethostname() if for_others else "localhost"
