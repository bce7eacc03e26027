"""Plans that are read from files, and written to them."""

from pathlib import Path

from pyrannc import _C, files, log
from pyrannc.errors import ConfigError, PlanError, RaNNCError
from pyrannc.planning.planner_inputs import whole_batch


def save_plan(deployment, path) -> None:
    """Writes the plan on rank 0; a file that is there is replaced as a whole."""
    if deployment.world.rank == 0:
        files.write_whole(path, deployment.plan.to_indented_json())


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
    hints = {
        "fingerprint": "the model, its settings or its inputs have changed",
        "world": "number of ranks",
    }
    for name, value in {"fingerprint": graph.fingerprint(), "world": world_size}.items():
        planned = getattr(plan.made_for, name)
        if planned and planned != value:
            raise PlanError(
                f"{path} was made for {name} {planned}, this job has {value} ({hints[name]})"
            )
    for name in ("idle_ns", "bubble_ns"):
        values = getattr(plan.step, name)
        if values and len(values) != world_size:
            raise PlanError(
                f"{path}: step_{name} is {values!r}, but it needs {world_size} numbers.\n  Leave "
                "it out: it is only compared with what is measured."
            )
    planned_rows = plan.made_for.global_batch or global_rows
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
    return plan.bucket_bytes or _C.predict.bucket_bytes(plan, devices)
