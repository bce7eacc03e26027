"""How fast messages between the ranks are: measured by what they will travel by, and for devices
kept on disk, so that a second run plans with the same numbers."""

import dataclasses
import json

import torch

from pyrannc import _C, __version__, files, log
from pyrannc.job import device_facts, transport
from pyrannc.job.agreement import on_rank
from pyrannc.profiling import cache

FORMAT, VERSION = "rannc-link-cache", 1
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
    kept = LinkCache(config.profile_cache, environment) if world.rank == 0 else None
    known = on_rank(0, world, lambda: kept.read())
    wanted = [name for name, there in zip(CLASSES, _classes(hosts), strict=True) if there]
    if all(name in known for name in wanted):
        return Links(**{name: Speed(*known[name]) for name in wanted})
    found = _as_links(transport.measure_links(world, device, config))
    if kept is not None:
        kept.write(found)
    return found


def environment_of_job(world, device, config, hosts) -> dict:
    """What the speed of its links depends on, beside their class. Collective."""
    names = {each.decode() for each in world.all_gather(device_facts.name(device).encode())}
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


class LinkCache:
    """One file for the links of one kind of job; rank 0 reads and writes it.

    Args:
        folder: As of :class:`pyrannc.profiling.cache.ProfileCache`, whose files lie beside it.
        environment: What :func:`environment_of_job` says.
    """

    def __init__(self, folder, environment):
        self._environment = environment
        self._path = cache.path_of("links", folder, environment)

    def read(self) -> dict:
        """``{class: [latency in ns, bytes per s]}`` of what is there."""
        if self._path is None:
            return {}
        try:
            return _checked(json.loads(self._path.read_text(encoding="utf-8")), self._environment)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # of which bytes that are no text are one
            log.warn("profile", f"{self._path} is ignored and will be written anew: {error}")
            return {}

    def write(self, links) -> None:
        if self._path is None:
            return
        speeds = {name: getattr(links, name) for name in CLASSES}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "environment": self._environment,
            "links": {name: dataclasses.astuple(each) for name, each in speeds.items() if each},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(self._path, json.dumps(content))
        except OSError as error:
            log.warn("profile", f"measured links are not kept for the next run: {error}")


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


def _checked(content, environment) -> dict:
    """The links of a file's content; raises ValueError when it is not what write() writes."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is no {FORMAT}")
    if content.get("version") != VERSION:
        raise ValueError(f"its version is {content.get('version')}, not {VERSION}")
    if content.get("environment") != environment:
        raise ValueError("it is of another job")
    links = content.get("links")
    if not isinstance(links, dict) or not all(map(_is_speed, links.values())):
        raise ValueError("its links are malformed")
    return {name: speed for name, speed in links.items() if name in CLASSES}


def _is_speed(speed) -> bool:
    return (
        isinstance(speed, list)
        and len(speed) == 2
        and all(type(number) in (int, float) for number in speed)
        and speed[0] >= 0
        and speed[1] > 0
    )
