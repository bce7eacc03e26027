"""Predicted against allocated and reserved peaks of GPT-2 medium under four plans."""

import device
import steps
import timed_models
from report import Report

from pyrannc import launch

# One rank has one stage: recompute shows where all micro-batches are in flight, under gpipe.
PLANS = {
    "whole batch": {"pipeline_num": 1, "recompute": "never"},
    "1f1b": {"pipeline_num": 4, "recompute": "never", "schedule": "1f1b"},
    "gpipe": {"pipeline_num": 4, "recompute": "never", "schedule": "gpipe"},
    "gpipe, recompute": {"pipeline_num": 4, "recompute": "always", "schedule": "gpipe"},
}
LARGEST_ERROR = 0.03
STEPS = 3


def mib(size):
    return round(size / 2**20, 1)


def peaks(step, place):
    """Allocated and reserved, of some steps after the first ones."""
    memory = device.memory()
    steps.warm_up(step, STEPS)
    memory.empty_cache()
    memory.reset_peak_memory_stats(place)
    steps.warm_up(step, STEPS)
    return memory.max_memory_allocated(place), memory.max_memory_reserved(place)


def compare(name, place, report):
    before = device.memory().memory_allocated(place)
    step, module = steps.wrapped(timed_models.MODELS["GPT-2 medium"], place, **PLANS[name])
    step()
    predicted = steps.predicted_bytes(module)
    report.figures[f"{name}: predicted MiB"] = mib(predicted)
    if before:
        report.figures[f"{name}: MiB of others"] = mib(before)
    for kind, measured in zip(("allocated", "reserved"), peaks(step, place), strict=True):
        error = predicted / measured - 1
        report.figures[f"{name}: {kind} MiB"] = mib(measured)
        report.figures[f"{name}: against {kind}"] = f"{error:+.1%}"
        report.expect(
            device.NAME != "cuda" or abs(error) <= LARGEST_ERROR,
            f"{name}: the predicted peak is off by {error:+.1%} of what was {kind}, more than "
            f"{LARGEST_ERROR:.0%}",
        )
    module.undeploy()


def main():
    launch.world()
    report = Report()
    place = device.start(deterministic=False)
    for name in PLANS:
        with report.case(name):
            compare(name, place, report)
        steps.forget()


if __name__ == "__main__":
    main()
