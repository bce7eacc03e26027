"""On which device each rank computes, compared over the ranks."""

import os

import torch

from pyrannc import log
from pyrannc.errors import ConfigError
from pyrannc.job import device_facts, process
from pyrannc.job.agreement import hosts_of
from pyrannc.job.by_rank import by_rank
from pyrannc.ranks import gathered
from pyrannc.state import model_device


def choose(model, call, optimizers, config, world) -> model_device.Places:
    """Where this rank computes; its device is the current one from here on. Collective.

    Args:
        model: The user's.
        call: The first :class:`~pyrannc.capture.arguments.call.Call`.
        optimizers: The user's.
        config: :class:`pyrannc.Config`; ``device`` and ``share_device`` count.
        world: The communicator of the job.

    Raises:
        ConfigError: A rank has no device to compute on, the ranks would compute on devices of
            different kinds, or two of them on one, or an optimizer's state is elsewhere than its
            parameters; on every rank.
    """
    hosts = hosts_of(world)
    local_rank = hosts[: world.rank].count(world.host)
    places, fault = None, ""
    try:
        inputs = dict(zip(call.paths, call.tensors, strict=True))
        model_device.check_state(model, optimizers)
        places = model_device.places_of(model, inputs, config.device, local_rank)
        _check_float64(places.device)
    except ConfigError as error:  # raised on every rank
        fault = str(error)
    mine = {"fault": fault, "host": world.host, "process": os.getpid()}
    if places:
        mine |= {
            "kind": places.device.type,
            "moves": places.moves,
            "identity": _identity(places.device, world.host),
            "name": _name(places.device),
        }
    ranks = gathered(world, mine)
    faults = [rank["fault"] for rank in ranks]
    if any(faults):
        one = next(filter(None, faults))
        raise ConfigError(one if faults.count(one) == len(faults) else by_ranks(faults))
    if len({(rank["kind"], rank["moves"]) for rank in ranks}) > 1:
        texts = [f"{rank['name']}{', with the model on the CPU' * rank['moves']}" for rank in ranks]
        raise ConfigError(
            f"the ranks compute on different kinds of devices:{by_rank(texts)}\n  Leave the model "
            "on the CPU on every rank and use Config(device=...), or move it on every rank."
        )
    _refuse_shared(ranks, config.share_device)
    process.make_current(places.device)
    if world.rank == 0 and places.device.type != "cpu":
        names = ", ".join(f"{number} on {rank['name']}" for number, rank in enumerate(ranks))
        log.info("deploy", f"ranks compute: {names}")
    return places


def _check_float64(device) -> None:
    """Raises ConfigError where the device cannot have what ranks and micro-batches sum."""
    if device.type in ("cpu", "meta"):
        return
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError) as error:  # of backends and of torch itself
        raise ConfigError(
            f"{device} has no float64 ({str(error).splitlines()[0]}), in which losses and "
            "statistics are summed.\n  Compute on the CPU: leave the model and its inputs there."
        ) from None


def _identity(device, host: str) -> str:
    """The same for two ranks exactly where they compute on one device; empty for the CPU."""
    if device.type == "cpu":
        return ""
    return device_facts.uuid(device) or f"{host}, {device}"


def _name(device) -> str:
    """In words: cuda:1 (NVIDIA H100)."""
    if device.type == "cpu":
        return "the CPU"
    name = device_facts.name(device)
    return f"{device} ({name})" if name else str(device)


def by_ranks(faults) -> str:
    return f"not every rank has a device:{by_rank([fault or 'none' for fault in faults])}"


def _refuse_shared(ranks, allowed):
    first = {}  # by identity
    for number, rank in enumerate(ranks):
        if not rank["identity"]:
            continue
        other = first.setdefault(rank["identity"], number)
        if other == number:
            continue
        if rank["process"] == ranks[other]["process"] and rank["host"] == ranks[other]["host"]:
            raise ConfigError(
                f"ranks {other} and {number} are threads of one process and compute on one device, "
                f"{rank['name']}: torch has one thread for all backwards of a device, in which "
                "they would wait for each other.\n  Start a process for each rank, or give each a "
                "device."
            )
        if not allowed:
            raise ConfigError(
                f"ranks {other} and {number} compute on one device, {rank['name']} of host "
                f"{rank['host']}.\n  The usual cause is model.cuda() before torch.cuda.set_device("
                "local rank); with the model on the CPU and Config(device='cuda') each rank takes "
                "one of its own. If there are fewer devices than ranks, Config(share_device=True) "
                "lets them share."
            )
