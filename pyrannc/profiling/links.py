"""How fast messages between the ranks are: measured by what they will travel by, and for devices
kept on disk, so that a second run plans with the same numbers."""

import dataclasses

import torch

from pyrannc import _C, __version__
from pyrannc.job import device_facts, transport
from pyrannc.profiling import cache
from pyrannc.profiling.kept_file import KeptFile
from pyrannc.ranks import gathered, on_rank

KIND = "rannc-link-cache", 1
CLASSES = ("intra_host", "inter_host")


@dataclasses.dataclass(frozen=True)
class Speed:
    """Of a link, one way."""

    latency_ns: float
    bandwidth_bytes_per_s: float


@dataclasses.dataclass(frozen=True)
class Links:
    """Between two ranks of a host, and of two hosts; None where the job has no such pair."""

    intra_host: Speed | None = None
    inter_host: Speed | None = None


def measure_links(task, hosts) -> Links:
    """The links of the job. Collective.

    Args:
        task: Whose device and settings say what messages travel by.
        hosts: Name of each rank's host.
    """
    world, device, config = task.world, task.device, task.config
    if device.type == "cpu":
        return _as_links(transport.measure_links(world, device, config))
    environment = environment_of_job(world, device, config, hosts)
    kept = KeptFile("links", KIND, _is_speed, config.profile_cache, environment)
    known = on_rank(0, world, kept.read)
    wanted = [name for name, there in zip(CLASSES, _classes(hosts), strict=True) if there]
    if all(name in known for name in wanted):
        return Links(**{name: Speed(*known[name]) for name in wanted})
    found = _as_links(transport.measure_links(world, device, config))
    if world.rank == 0:
        speeds = {name: getattr(found, name) for name in CLASSES}
        kept.write({name: dataclasses.astuple(each) for name, each in speeds.items() if each})
    return found


def environment_of_job(world, device, config, hosts) -> dict:
    """What the speed of its links depends on, beside their class. Collective."""
    names = set(gathered(world, device_facts.name(device)))
    by = transport.name(world, device, config)
    accelerator = cache.accelerator(device)
    environment = {
        "pyrannc": __version__,
        "torch": torch.__version__,
        "transport": by,
        "devices": sorted(names),
        "hosts": sorted(set(hosts)),
        **{key: accelerator[key] for key in ("kind", "runtime", "driver")},
    }
    if by == "nccl":
        return environment | {"nccl": _C.comm.find_nccl(config.nccl_library)[1]}
    return environment | {"mpi": _C.comm.started_mpi(), "pinned": config.pinned_memory_mib}


def _classes(hosts):
    """Whether there are two ranks on a host, and two hosts."""
    return len(set(hosts)) < len(hosts), len(set(hosts)) > 1


def _as_links(speeds) -> Links:
    found = {name: getattr(speeds, name) for name in CLASSES}
    return Links(
        **{
            name: each and Speed(each.latency_ns, each.bandwidth_bytes_per_s)
            for name, each in found.items()
        }
    )


def _is_speed(speed) -> bool:
    return (
        isinstance(speed, list)
        and len(speed) == 2
        and all(type(number) in (int, float) for number in speed)
        and speed[0] >= 0
        and speed[1] > 0
    )
