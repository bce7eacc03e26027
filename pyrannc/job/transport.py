"""How ranks exchange what their devices compute."""

from pyrannc import _C, log
from pyrannc.job import nccl


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
        log.info("deploy", f"messages between devices: {wanted}, {why}")
    if wanted == "nccl":
        return nccl.communicator(world, device, config)
    return _C.runtime.staged(world, str(device), config.pinned_memory_mib << 20)


def measure_links(world, device, config):
    """``_C.comm.LinkSpeeds`` of messages of ``device``'s memory. Collective.

    Those of NCCL, whose communicators are connected for a plan, are taken to be the host's.
    """
    if device.type == "cpu" or _wanted(world, device, config)[0] == "nccl":
        return _C.comm.measure_links(world)
    staged = _C.runtime.staged(world, str(device), config.pinned_memory_mib << 20)
    return _C.runtime.measure_links(staged, str(device))


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
