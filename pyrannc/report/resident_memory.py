"""Memory of the whole process that is in use, as the system counts it: what users see."""

import os
from pathlib import Path

from pyrannc.ranks import gathered

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak_bytes() -> int:
    """Of this process since its start, or since ``process.restart_resident_peak()``."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def predict(plan, held_bytes, world, on_host=True) -> list:
    """For each stage, what the process of its fullest rank takes in a step, in bytes.

    It is what the process takes now, before the first step, without the tensors of the model
    (Python, torch, the user's data), and what a step holds; None where that is not known. Where the
    step runs on an accelerator, what it holds is there. Collective.

    Args:
        held_bytes: Tensors of the model and the optimizer on this rank now.
        on_host: Whether it is the host that computes.
    """
    mine = resident_bytes() - held_bytes * on_host
    others = gathered(world, mine)
    peaks = _step_peaks(plan) if on_host else [0] * len(plan.stages)
    return [
        None if peak is None else peak + max(others[rank] for rank in stage.ranks)
        for peak, stage in zip(peaks, plan.stages, strict=True)
    ]


def most_of_rank(plan, rank) -> int:
    """What the plan says that a step of ``rank`` holds, in bytes; -1 where it does not say."""
    peaks = [
        peak
        for peak, stage in zip(_step_peaks(plan), plan.stages, strict=True)
        if rank in stage.ranks
    ]
    return -1 if None in peaks else max(peaks, default=-1)


def compare(predicted, measured) -> str:
    """One line. What else is in a process is the user's affair, so no difference is an error.
    Stages of which all is equal, as those of one rank, are named together.

    Args:
        predicted, measured: Bytes by the number of a stage, with the same keys.
    """
    stages = {}
    for number, first in predicted.items():
        sizes = f"{_mib(first)}, measured {_mib(measured[number])}"
        stages.setdefault(sizes, []).append(str(number))
    parts = (
        f"stage{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} {sizes}"
        for sizes, numbers in stages.items()
    )
    return f"process with all that is in it: predicted {'; '.join(parts)}"


def _step_peaks(plan) -> list:
    return plan.step.peak_bytes or [
        stage.predicted.peak_bytes if stage.predicted else None for stage in plan.stages
    ]


def _mib(count) -> str:
    return f"{count / 2**20:.0f} MiB" if count else "nothing"
