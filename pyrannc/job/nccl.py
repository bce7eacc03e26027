"""NCCL between the ranks' devices: whether it can be taken, and the communicator that it makes."""

import weakref

from pyrannc import _C, log
from pyrannc.errors import CommError, ConfigError
from pyrannc.job import device_facts, process
from pyrannc.ranks import gathered

# By world, as long as it lives: (device, communicator).
_made = weakref.WeakKeyDictionary()
ORDERS_EACH = 23100  # NCCL 2.31, whose communicators can ask for an order of their launches


def refusal(world, device, config) -> str:
    """Why not all ranks can use NCCL, the same text on all; empty if they can. Collective."""
    process.order_nccl_launches()  # before the library is asked anything
    mine = {"host": world.host, "device": _identity(device), "error": ""}
    try:
        mine["file"], mine["version"] = _C.comm.find_nccl(config.nccl_library)
    except CommError as error:
        mine["error"] = str(error)
    ranks = gathered(world, mine)
    for rank, other in enumerate(ranks):
        if other["error"]:
            return f"rank {rank}: {other['error']}"
    first = {}  # by device
    for rank, other in enumerate(ranks):
        if other["version"] != ranks[0]["version"]:
            versions = [_C.comm.nccl_version_text(each["version"]) for each in (ranks[0], other)]
            return f"rank 0 has NCCL {versions[0]}, and rank {rank} has NCCL {versions[1]}"
        taken = first.setdefault((other["host"], other["device"]), rank)
        if taken != rank:
            return f"ranks {taken} and {rank} compute on one device of host {other['host']}"
    return ""


def communicator(world, device, config):
    """A communicator of ``device``'s memory over NCCL; one for all models on ``world``. Collective.

    Raises:
        ConfigError: A rank has no NCCL, another version, or no device of its own; on every rank.
        CommError: NCCL cannot start, or a rank does not come before the deadline.
    """
    if world in _made and _made[world][0] == device:
        return _made[world][1]
    if reason := refusal(world, device, config):
        raise ConfigError(
            f"device_transport is nccl, but {reason}.\n  Config(device_transport='staged') needs "
            "none."
        )
    # By the ranks together: where one of them has to do without, all do.
    unordered = next(filter(None, gathered(world, process.order_nccl_launches())), "")
    _, version = _C.comm.find_nccl(config.nccl_library)
    one_stream, order_each, warning = launches(unordered, version, config.nccl_one_stream)
    if world.rank == 0 and warning:
        log.warn("deploy", warning)
    made = _C.runtime.nccl(world, str(device), config.nccl_library, one_stream, order_each)
    _made[world] = (device, made)
    _end_with_process(made)
    return made


def _end_with_process(made) -> None:
    """Ends ``made`` before the interpreter goes: the device's driver goes before what is left over
    then, and a watch over its events would take that for a failure of the device."""
    kept = weakref.ref(made)

    def end():
        still = kept()
        if still is not None:
            _C.comm.end_nccl(still)

    process.before_python_ends(end)


def launches(unordered, version, wants_one_stream):
    """How what several communicators launch gets an order: whether all goes on one stream, whether
    each communicator asks for it, and what to warn of.

    Args:
        unordered: Why NCCL itself does not order it; empty if it does.
        version: Of NCCL, as its number.
        wants_one_stream: The setting.
    """
    order_each = bool(unordered) and version >= ORDERS_EACH and not wants_one_stream
    one_stream = wants_one_stream or (bool(unordered) and not order_each)
    if not unordered or wants_one_stream:
        return one_stream, order_each, ""
    what = (
        "NCCL orders only what RaNNC's own communicators launch"
        if order_each
        else "all of NCCL's work goes on one stream, which is slower"
    )
    return one_stream, order_each, f"{what}, because {unordered}"


def reconnect(world) -> None:
    """Makes the communicators of NCCL anew, if there are any. Collective."""
    if world in _made:
        device, made = _made[world]
        _C.runtime.reconnect_nccl(made, str(device))


def _identity(device) -> str:
    """What no other device of a host is called."""
    return device_facts.uuid(device) or str(device.index)
