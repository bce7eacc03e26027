"""Plans that are read from files, and written to them."""

import json
from pathlib import Path

from pyrannc import _C, files, log
from pyrannc.errors import ConfigError, PlanError, RaNNCError
from pyrannc.planning.planner_inputs import MIB, whole_batch


def check_save(config) -> None:
    """Raises ConfigError where the plan could not be written, before the work that it takes."""
    if not config.save_deployment:
        return
    try:
        files.check_writable(config.deployment_file)
    except OSError as error:
        raise ConfigError(
            f"save_deployment: the plan cannot be written to {config.deployment_file}: "
            f"{error.strerror}.\n  Set deployment_file to a file in a folder that rank 0 may write "
            "to."
        ) from None


def save_plan(deployment, path) -> None:
    """Writes the plan on rank 0; a file that is there is replaced as a whole."""
    if deployment.world.rank == 0:
        content = json.dumps(json.loads(deployment.plan.to_json()), indent=1)
        files.write_whole(path, content + "\n")


def read_plan(path, graph, global_rows, world_size) -> str:
    """A plan from a file, after a look at whether it was made for this job."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        plan = _C.plan.Plan.from_json(text)
    except OSError as error:
        raise ConfigError(f"load_deployment: {error}") from None
    except (UnicodeDecodeError, RaNNCError) as error:
        raise ConfigError(
            f"load_deployment: {path} is no whole plan file: {error}\n  Take another file, or plan "
            "anew with save_deployment."
        ) from None
    if (synced := whole_batch(graph)) and plan.micro_batches > 1:
        raise PlanError(
            f"{path} has {plan.micro_batches} micro-batches, but with sync_batch_norm the "
            f"statistics of {synced} are those of the whole batch, which must then be one.\n"
            "  Plan anew with sync_batch_norm, or leave it off."
        )
    notes = json.loads(plan.notes or "{}")
    now = {"fingerprint": graph.fingerprint(), "world": world_size}
    for name, value in now.items():
        if name in notes and notes[name] != value:
            hint = {
                "fingerprint": "the model, its settings or its inputs have changed",
                "world": "number of ranks",
            }[name]
            raise PlanError(
                f"{path} was made for {name} {notes[name]}, this job has {value} ({hint})"
            )
    bucket = notes.get("bucket_bytes", MIB)
    if not isinstance(bucket, int) or bucket < MIB:
        raise PlanError(
            f"{path}: bucket_bytes is {bucket!r}, but gradients are summed in buckets of a whole "
            f"number of bytes, at least {MIB}.\n  Leave it out: then it follows from the links."
        )
    predicted = {
        "step_peak_bytes": len(plan.stages),
        "step_resident_bytes": len(plan.stages),
        "step_idle_ns": world_size,
        "step_bubble_ns": world_size,
    }
    for name, count in predicted.items():
        values = notes.get(name, [0] * count)
        if not isinstance(values, list) or len(values) != count:
            raise PlanError(
                f"{path}: {name} is {values!r}, but it needs {count} numbers.\n  Leave it out: it "
                "is only compared with what is measured."
            )
    planned_rows = notes.get("global_batch", global_rows)
    if planned_rows != global_rows:
        log.info(
            "deploy",
            f"{path} was made for {planned_rows} rows of all ranks together, this job begins with "
            f"{global_rows}: time and memory will differ from what it predicts",
        )
    return text


def bucket_bytes(plan, devices) -> int:
    """In which gradients are summed over the replicas, equal on all ranks.

    A plan from a file brings it along: what is added to what first, and so the last bit of a sum
    over three ranks or more, depends on it.
    """
    notes = json.loads(plan.notes or "{}")
    return notes.get("bucket_bytes") or _C.predict.bucket_bytes(plan, devices)
