"""How fast the hosts of a job are beside each other: each rank counts how often it computes a few
common operators in a while."""

import dataclasses
import statistics
import time

import torch

from pyrannc import log
from pyrannc.job import device_facts
from pyrannc.profiling import cache
from pyrannc.ranks import gathered

#: How long every rank counts.
#: tuned by: hosts that a control group limits to 0.25 core compute for 25 ms of each 100.
#: without it: in a shorter while such a host is as fast as others, or does nothing at all.
_COUNTED_S = 1.0
#: Hosts with the same processor whose counts differ by less than this factor are of one kind.
#: tuned by: equal hosts on two cores that other programs use, too.
#: without it: hosts that something else slows down for a moment get less to do in the whole run.
_ALIKE = 1.3


@dataclasses.dataclass(frozen=True)
class HostSpeeds:
    """Hosts of one kind are equally fast.

    Attributes:
        of_hosts: Of each host, relative to the fastest kind; empty where there is one kind only.
        fastest: The ranks on hosts of the fastest kind, whose times the others' speeds are of.
    """

    of_hosts: list
    fastest: list


def measure(task, hosts) -> HostSpeeds:
    """The speeds of the job's hosts, in the order in which they first occur. Collective.

    Args:
        task: On whose device it is counted.
        hosts: Name of each rank's host.
    """
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        return HostSpeeds([], list(range(len(hosts))))
    counts = _counter(task.device)
    task.world.barrier()  # side by side, as in a step
    mine = {"rate": counts(_COUNTED_S), "processor": _processor(task.device)}
    ranks = gathered(task.world, mine)
    rates = [
        statistics.median(each["rate"] for each, on in zip(ranks, hosts, strict=True) if on == name)
        for name in names
    ]
    processors = [ranks[hosts.index(name)]["processor"] for name in names]
    speeds = of_kinds(rates, processors)
    if task.world.rank == 0 and min(speeds) < 1:
        said = ", ".join(f"{name} {speed:.2f}" for name, speed in zip(names, speeds, strict=True))
        log.info("profile", f"hosts are not equally fast, relative to the fastest: {said}")
    fastest = [rank for rank, on in enumerate(hosts) if speeds[names.index(on)] == 1]
    return HostSpeeds(speeds if min(speeds) < 1 else [], fastest)


def of_kinds(rates, processors) -> list:
    """The speed of each host by its rate, relative to the fastest kind."""
    kinds = []  # of each the hosts, from the fastest on
    for host in sorted(range(len(rates)), key=lambda host: -rates[host]):
        for kind in kinds:
            same = processors[kind[0]] == processors[host]
            if same and rates[kind[0]] < _ALIKE * rates[host]:
                kind.append(host)
                break
        else:
            kinds.append([host])
    of_kind = [statistics.mean(rates[host] for host in kind) for kind in kinds]
    speeds = [1.0] * len(rates)
    for kind, rate in zip(kinds, of_kind, strict=True):
        for host in kind:
            speeds[host] = rate / max(of_kind)
    return speeds


def _processor(device) -> str:
    if device.type != "cpu":
        return device_facts.name(device)
    return f"{cache.environment_of_process()['device']}, {torch.get_num_threads()} threads"


def _counter(device):
    """A function that computes for so many seconds, and returns how often a second it could."""
    layer = torch.nn.Linear(256, 256, device=device)
    rows = torch.ones(64, 256, device=device)

    def once():
        with torch.enable_grad():
            torch.nn.functional.gelu(layer(rows)).sum().backward()
        layer.weight.grad.sum().item()  # the host waits for the device

    def counts(seconds):
        done, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < seconds:
            once()
            done += 1
        return done / passed

    once()
    return counts
