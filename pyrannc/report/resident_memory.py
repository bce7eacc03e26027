"""Memory of the whole process that is in use, as the system counts it: what users see."""

import json
import os
from pathlib import Path

from pyrannc import _C

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak_bytes() -> int:
    """Of this process since its start, or since ``process.restart_resident_peak()``."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def predict(plan, held_bytes, world):
    """``plan`` with what the process of each stage's ranks takes in a step, as a note.

    It is what the process takes now, before the first step, without the tensors of the model
    (Python, torch, the user's data), and what a step holds. Collective.

    Args:
        held_bytes: Tensors of the model and the optimizer on this rank now.
    """
    mine = resident_bytes() - held_bytes
    others = [json.loads(item) for item in world.all_gather(json.dumps(mine).encode())]
    content = json.loads(plan.to_json())
    peaks = step_peaks(plan)
    if None in peaks:
        return plan
    content.setdefault("notes", {})["process_bytes"] = [
        peak + max(others[rank] for rank in stage.ranks)
        for peak, stage in zip(peaks, plan.stages, strict=True)
    ]
    return _C.plan.Plan.from_json(json.dumps(content))


def predicted(plan) -> list:
    """What predict() noted for each stage; None where nothing was."""
    noted = json.loads(plan.notes or "{}").get("process_bytes")
    return noted or [None] * len(plan.stages)


def most_of_rank(plan, rank) -> int:
    """What the plan says that a step of ``rank`` holds, in bytes; -1 where it does not say."""
    peaks = [
        peak
        for peak, stage in zip(step_peaks(plan), plan.stages, strict=True)
        if rank in stage.ranks
    ]
    return -1 if None in peaks else max(peaks, default=-1)


def step_peaks(plan) -> list:
    """For each stage, the most that a rank of it holds in a step, in bytes; None where that is not
    known."""
    return plan.step.peak_bytes or [
        stage.predicted and stage.predicted.peak_bytes for stage in plan.stages
    ]
