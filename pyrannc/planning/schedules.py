"""Which schedules a model can run under, and what follows from the one that its plan has."""

from pyrannc import _C
from pyrannc.errors import ConfigError, PlanError

#: Most block ranges of a rank that the planner tries.
#: tuned by: a bound on the time of planning; six and eight stages of the CNN on two ranks need 3
#: and 4.
#: without it: planning takes longer for each number of ranges that is tried; with fewer, the CNN's
#: six and eight stages on two ranks are not found.
MAX_INTERLEAVE = 4


def request(captured, training, config, mixing) -> dict:
    """The part of the planner's request about schedules.

    1F1B is never slower than fill-drain and keeps less, so a model that returns its loss gets it
    whatever the planner finds: what outputs mean must not depend on that.
    """
    asked = config.schedule
    if asked == "auto":
        has_loss = training and not mixing and _C.plan.loss_of(captured.graph) is not None
        schedules = ["1f1b", "interleaved"] if has_loss else ["gpipe"]
    else:
        schedules = [asked]
        if asked != "gpipe" and _C.plan.loss_of(captured.graph) is None:
            raise ConfigError(f"schedule = '{asked}' {_needs_loss(training)}")
    if "interleaved" in schedules:
        return {"schedules": schedules, "max_interleave": MAX_INTERLEAVE}
    return {"schedules": schedules}


def check_loaded(plan, path, captured, training, config) -> None:
    """Whether a plan from a file can train this model, in the way that is asked for."""
    if config.schedule not in ("auto", plan.schedule):
        raise ConfigError(
            f"schedule = '{config.schedule}', but {path} has '{plan.schedule}': plan anew, or "
            "leave schedule at 'auto'"
        )
    if training and not can_train(plan, captured.graph):
        raise PlanError(f"{path} has schedule '{plan.schedule}', which {_needs_loss(training)}")


def can_train(plan, graph) -> bool:
    """Whether the plan's schedule can start the backward of ``graph``."""
    return not _C.plan.backward_comes_first(plan) or _C.plan.loss_of(graph) is not None


def _needs_loss(training) -> str:
    why = (
        "runs backward before the outputs are returned, so it needs a model that returns its loss "
        "in training mode: a floating 0-dim tensor that requires a gradient, a mean or a sum over "
        "the rows of the batch, and of several such the one that the others are parts of.\n"
        "  Compute the loss in forward(), or use schedule='gpipe'."
    )
    return why if training else f"{why} The first call was made in eval mode; train() comes first."
