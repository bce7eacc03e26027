"""How ranks exchange what their devices compute."""

import contextlib
import weakref

import torch

from pyrannc import _C, log
from pyrannc.job import device_facts, nccl

# By world, as long as it lives: what has been made over it.
_made = weakref.WeakKeyDictionary()


def of_messages(world, device, config):
    """A communicator for memory of ``device``, over ``world``'s, which lives on. Collective.

    For the CPU it is ``world`` itself; for an accelerator what ``config.device_transport`` says:
    NCCL, or pinned memory of the host. ``auto`` takes NCCL where all ranks can use it.

    Raises:
        ConfigError, CommError: As :func:`pyrannc.job.nccl.communicator`.
    """
    if device.type == "cpu":
        return world
    wanted, why = _wanted(world, device, config)
    if world.rank == 0:
        how = "in their one order, each waiting for both its ends"
        predicted = how if wanted == "nccl" else "as buffered"
        log.info("deploy", f"messages between devices: {wanted}, {why}; predicted {predicted}")
    if wanted == "nccl":
        made = nccl.communicator(world, device, config)
    else:
        made = _C.runtime.staged(world, str(device), config.pinned_memory_mib << 20)
    _made.setdefault(world, weakref.WeakSet()).add(made)
    return made


def start(world, device, config) -> None:
    """Starts NCCL, if that is what messages of ``device`` will go by, so that what it takes of the
    device's memory is not taken to be free. Collective."""
    if in_order(world, device, config):
        nccl.communicator(world, device, config)


def in_order(world, device, config) -> bool:
    """Whether messages of ``device`` go in the Program's order and wait for both their ends, as
    NCCL's do, and are predicted so. Collective."""
    return device.type != "cpu" and world.size > 1 and name(world, device, config) == "nccl"


@contextlib.contextmanager
def counting_memory(device):
    """Around what connects ranks: a list that gets, at the end, the bytes of the device's memory
    that NCCL has taken for it, beside torch's; and a line of the log. What torch keeps there unused
    is given back first, as nobody else can take it."""
    taken = []
    if device.type == "cpu" or device_facts.memory(device) is None:  # nobody could tell
        yield taken
        return
    torch.accelerator.empty_cache()
    before = _beside_torch(device)
    yield taken
    taken.append(max(_beside_torch(device) - before, 0))
    if taken[0] > 0:
        log.info("deploy", f"connecting ranks took {taken[0] / 2**20:.1f} MiB of {device}'s memory")


def _beside_torch(device):
    known = device_facts.memory(device)
    return known[1] - known[0] - torch.accelerator.memory_reserved(device) if known else 0


def left_messages(world) -> str:
    """Why messages of ``world``, or of devices over it, may be left over; empty if none are."""
    for each in (world, *_made.get(world, ())):
        if text := each.left_messages:
            return text
    return ""


def measure_links(world, device, config):
    """``_C.comm.LinkSpeeds`` of messages of ``device``'s memory, by the transport in use.
    Collective."""
    if device.type == "cpu":
        return _C.comm.measure_links(world)
    if name(world, device, config) == "nccl":
        made = nccl.communicator(world, device, config)
    else:
        made = _C.runtime.staged(world, str(device), config.pinned_memory_mib << 20)
    return _C.runtime.measure_links(made, str(device))


def name(world, device, config) -> str:
    """Of the transport of messages of an accelerator ``device``: nccl or staged. Collective."""
    return _wanted(world, device, config)[0]


def _wanted(world, device, config):
    """The transport, and why. Collective."""
    if config.device_transport == "auto":
        return _automatic(world, device, config)
    return config.device_transport, "as device_transport says"


def _automatic(world, device, config):
    """The transport, and why."""
    if world.size == 1:
        return "staged", "as there is one rank"
    # NCCL is of CUDA's devices; for another one somebody names a library for it.
    if device.type != "cuda" and not config.nccl_library:
        return "staged", f"as NCCL is not for {device.type}"
    reason = nccl.refusal(world, device, config)
    return ("staged", f"because {reason}") if reason else ("nccl", "as every rank has a device")
