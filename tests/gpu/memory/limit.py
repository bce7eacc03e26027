"""A plan that takes nearly all of the memory there is runs.

    python tests/gpu/memory/limit.py SHARE

What the plan needs is known from its prediction; a tensor takes so much of the device that this is
that share of the rest. The second model is planned with that.
"""

import sys

import device
import steps
import timed_models
import torch
from plans import mib
from report import Report

from pyrannc import launch
from pyrannc.planning import device_memory

# Allocators reserve blocks of 20 MiB: of a small model they are much.
SHARE = 0.5 if device.SMALL else float(sys.argv[1])
STEPS = 5
# Of the plan's limit beyond its prediction: predictions of two runs are not equal to the byte, and
# a batch is on the device, too.
ROOM, ROOM_BYTES = 1.002, 4 << 20
SETTINGS = {"pipeline_num": 1, "recompute": "never", "mem_margin": 1 - SHARE}


def model():
    if not device.SMALL:
        return timed_models.MODELS["GPT-2 medium"]
    words = timed_models.words(2048, 32)
    return timed_models.Model(
        lambda: timed_models.Gpt2(2, 256, 2, 2048, 32), words, 8, timed_models.adamw
    )


def needed_bytes(place):
    """What a plan is predicted to hold, where it may have all memory."""
    step, module = steps.wrapped(model(), place, **SETTINGS)
    step()
    predicted = steps.predicted_bytes(module)
    module.undeploy()
    return predicted


def run(place, report):
    figures, memory = report.figures, device.memory()
    predicted = needed_bytes(place)
    steps.forget()
    there = device_memory.available_bytes(place, torch.nn.Module(), [])
    taken = there - int((predicted * ROOM + ROOM_BYTES) / SHARE)
    if taken < 0:
        raise RuntimeError(f"{mib(predicted)} MiB are needed, of {mib(there)} MiB")
    ballast = torch.empty(taken, dtype=torch.uint8, device=place)
    left = there - ballast.nbytes
    figures |= {"predicted MiB": mib(predicted), "memory left MiB": mib(left)}
    figures["share of it"] = f"{predicted / left:.1%}"
    report.show()
    step, module = steps.wrapped(model(), place, **SETTINGS)
    losses = [step() for _ in range(2)]
    torch.accelerator.synchronize()
    memory.empty_cache()
    memory.reset_peak_memory_stats(place)
    losses += [step() for _ in range(STEPS)]
    peak = memory.max_memory_reserved(place) - ballast.nbytes
    figures["reserved MiB"] = mib(peak)
    figures["reserved share"] = f"{peak / left:.1%}"
    stats = memory.memory_stats(place)
    figures["retried allocations"] = stats.get("num_alloc_retries", 0)
    figures["steps"] = len(losses)
    assert torch.stack(losses).isfinite().all().item(), "a loss is not finite"
    module.undeploy()


def main():
    launch.world()
    report = Report()
    place = device.start(deterministic=False)
    with report.case(f"a plan at {SHARE:.0%}"):
        run(place, report)


if __name__ == "__main__":
    main()
