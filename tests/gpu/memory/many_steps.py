"""Memory over many steps stays as it is: of the device, in pinned buffers, and of the process.

Nobody says how many events there are; each takes memory of the driver and of the process. On two
ranks there are messages, in pinned buffers and with events.
"""

import json
import statistics

import device
import steps
import timed_models
import torch
from plans import mib
from report import Report

from pyrannc import launch
from pyrannc.report import resident_memory

STEPS = 8 if device.SMALL else 200
#: Of the process: Python's own caches grow a little; 200 steps that lost one event each of a
#: thousand would take more.
MOST_MORE_RESIDENT = 48 << 20
#: Of the driver, which gives out memory in large pieces.
MOST_MORE_USED = 16 << 20


def pinned_bytes():
    """Of the allocator of pinned memory. (What torch says to be active of it grows by each block
    that it gives out and one byte: torch 2.11 takes back -1 byte for each.)"""
    if device.NAME == "standin":
        import standin

        return {"pinned": standin.most_pinned_bytes()}
    stats, key = torch.cuda.host_memory_stats(), "allocated_bytes.current"
    return {"pinned": stats[key]} if key in stats else {}


def now(place):
    found = {
        "allocated": device.memory().memory_allocated(place),
        "reserved": device.memory().memory_reserved(place),
        "driver": device.used_bytes(place),
        "process": resident_memory.resident_bytes(),
    }
    try:
        return found | pinned_bytes()
    except Exception:  # a torch that does not count it
        return found


def settings(world):
    if world.size == 1:
        return {"recompute": "always", "pipeline_num": 2}
    return {
        "partition_num": 1 if world.size % 2 else 2,
        "pipeline_num": 4,
        "calibrate": False,
        "schedule": "1f1b",
    }


def model_of(world):
    """Two ranks have small models: their messages count, and they share the device."""
    small = timed_models.SMALL["GPT-2 medium"]
    return timed_models.MODELS["GPT-2 medium"] if world.size == 1 else small


def run(world, place):
    """What grew on this rank: ``{kind: (bytes in the middle, at the end, growth)}``."""
    step, _ = steps.wrapped(model_of(world), place, **settings(world))
    after = []
    for _ in range(STEPS):
        step()
        torch.accelerator.synchronize()
        after.append(now(place))
    half = after[STEPS // 2 :]
    kinds = [kind for kind in half[0] if all(kind in each for each in half)]
    found = {}
    for kind in kinds:
        sizes = [each[kind] for each in half]
        quarter = max(len(sizes) // 4, 1)
        begin, end = statistics.median(sizes[:quarter]), statistics.median(sizes[-quarter:])
        found[kind] = [begin, end, max(sizes) - min(sizes)]
    return found


def failures(found, alone):
    """What must not be more at the end. What torch has allocated may not even change, where no
    message is under way between two steps, which gives its memory back when it comes to it."""
    most = {"process": MOST_MORE_RESIDENT, "driver": MOST_MORE_USED}
    for kind, (begin, end, spread) in found.items():
        grown = spread if kind == "allocated" and alone else end - begin
        if grown > most.get(kind, 0):
            yield f"{kind}: {grown:.0f} bytes more or less in the last {STEPS // 2} steps"


def main():
    world = launch.world()
    world.timeout_s = 60
    report = Report(shown=world.rank == 0)
    place = device.start(deterministic=False)
    found = {}
    with report.case("steps"):
        found = run(world, place)
    everyone = [json.loads(each) for each in world.all_gather(json.dumps(found).encode())]
    report.figures["steps"] = STEPS
    for rank, of_rank in enumerate(everyone):
        where = f"rank {rank}, " if world.size > 1 else ""
        for kind, (_, end, spread) in of_rank.items():
            report.figures[f"{where}{kind} MiB"] = f"{mib(end)} (+- {mib(spread)})"
        report.failures += [f"{where}{text}" for text in failures(of_rank, world.size == 1)]
    report.show()
    world.barrier()


if __name__ == "__main__":
    main()
