"""What steps took, as numbers: a record of a run, and where it goes."""

import json

from pyrannc import log
from pyrannc.report import time_shares

FORMAT, VERSION = "rannc-run", 1


def record(plan, process_bytes, count, rows, ranks, now, work) -> dict:
    """What all ranks have measured since the record before, beside what the plan predicts.

    Args:
        plan: ``_C.plan.Plan``.
        process_bytes: Of each stage, what ``resident_memory.predict`` says.
        count: Training steps so far.
        rows: Of the global batch.
        ranks: Of each rank: seconds of a step, the most bytes that it held, the most that its
            process took, and its shares, as ``time_shares.between`` returns them.
        now: What ``speed.Speed.during`` says, or None.
        work: What ``matrix_work.of_step`` says.

    Returns:
        Numbers and texts only, for a line of JSON: times in ``_ns``, memory in ``_bytes``, shares
        of a step from 0 to 1. A stage has the most of its ranks.
    """
    seconds, peaks, processes, shares = zip(*ranks, strict=True)
    step = max(seconds)
    predicted = plan.iteration_ns if plan.step.ns is None else plan.step.ns
    expected = plan.step.peak_bytes or [
        stage.predicted.peak_bytes if stage.predicted else None for stage in plan.stages
    ]
    hidden = time_shares.hidden(plan, shares)
    flops, peak_s = work
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": plan.made_for.fingerprint,
        "steps": count,
        "step_ns": round(1e9 * step),
        "predicted_step_ns": predicted,
        "predicted_at_speed_ns": round(now.ns) if now else None,
        "rows_per_s": rows / step if step else 0.0,
        "flops_per_s": flops / step if step else 0.0,
        "flops_share": peak_s / (step * len(ranks)) if step and peak_s is not None else None,
        "stages": [
            {
                "ranks": list(stage.ranks),
                "peak_bytes": max(peaks[rank] for rank in stage.ranks),
                "predicted_peak_bytes": expected[index],
                "process_bytes": max(processes[rank] for rank in stage.ranks),
                "predicted_process_bytes": process_bytes[index],
            }
            for index, stage in enumerate(plan.stages)
        ],
        "ranks": [
            each | {"could_be_hidden": could} for each, could in zip(shares, hidden, strict=True)
        ],
    }


def empty(plan, count) -> dict:
    """The same before anything is known."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": plan.made_for.fingerprint,
        "steps": count,
    }


def flat(found) -> dict[str, float]:
    """The numbers of a record by one name each, as TensorBoard wants them."""
    scalars = {
        "step_ms": found["step_ns"] / 1e6,
        "predicted_step_ms": found["predicted_step_ns"] / 1e6,
        "rows_per_s": found["rows_per_s"],
        "flops_per_s": found["flops_per_s"],
    }
    if found["flops_share"] is not None:
        scalars["flops_share"] = found["flops_share"]
    for index, stage in enumerate(found["stages"]):
        scalars[f"memory_mib/stage_{index}"] = stage["peak_bytes"] / 2**20
    for rank, shares in enumerate(found["ranks"]):
        for kind in ("compute", "idle", "could_be_hidden"):
            scalars[f"{kind}/rank_{rank}"] = shares[kind]
    return scalars


class Sinks:
    """Files that rank 0 adds each record to. One that cannot be written is left out from then on,
    with a warning."""

    def __init__(self, config):
        self._writers = []
        if config.metrics_file:
            self._writers.append((config.metrics_file, _lines(config.metrics_file)))
        if config.tensorboard_dir:
            self._writers.append((config.tensorboard_dir, _tensorboard(config.tensorboard_dir)))

    def write(self, found) -> None:
        for writer in [*self._writers]:
            name, write = writer
            try:
                write(found)
            except OSError as error:
                self._writers.remove(writer)
                log.warn("deploy", f"no more metrics go to {name}: {error.strerror}")


def _lines(path):
    def write(found):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")

    return write


def _tensorboard(folder):
    from torch.utils.tensorboard import SummaryWriter  # a second to load, and not always installed

    writer = SummaryWriter(folder)

    def write(found):
        for name, value in flat(found).items():
            writer.add_scalar(f"rannc/{name}", value, found["steps"])
        writer.flush()

    return write
