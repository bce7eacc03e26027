"""Which schedules a model can run under, and what follows from the one that its plan has."""

import re

from pyrannc import _C, log
from pyrannc.errors import ConfigError, PlanError

#: Most block ranges of a rank that the planner tries.
#: tuned by: a bound on the time of planning; six and eight stages of the CNN on two ranks need 3
#: and 4.
#: without it: planning takes longer for each number of ranges that is tried; with fewer, the CNN's
#: six and eight stages on two ranks are not found.
MAX_INTERLEAVE = 4


# Names under which models return the whole loss, and not a part of it.
_NAMES_OF_LOSS = re.compile(r"(\.|\[')(total_)?loss('\])?$")


def request(captured, training, config, mixing, outputs=_C.plan.Outputs.loss) -> dict:
    """The part of the planner's request about schedules.

    1F1B is never slower than fill-drain and keeps less, so a model that returns its loss gets it
    whatever the planner finds: what outputs mean must not depend on that.
    """
    asked = config.schedule
    if asked == "auto":
        has_loss = training and not mixing and _C.plan.loss_of(captured.graph) is not None
        if has_loss and outputs != _C.plan.Outputs.all:
            has_loss = not loss_outside(captured)
        schedules = ["1f1b", "interleaved"] if has_loss else ["gpipe"]
    else:
        schedules = [asked]
        if asked != "gpipe" and _C.plan.loss_of(captured.graph) is None:
            raise ConfigError(f"schedule = '{asked}' {_needs_loss(training)}")
    if "interleaved" in schedules:
        return {"schedules": schedules, "max_interleave": MAX_INTERLEAVE}
    return {"schedules": schedules}


def loss_outside(captured) -> str:
    """Why the number that a model returns seems to be only a part of its loss, the rest of which
    the training loop computes from the other outputs; empty where it is the loss."""
    graph, paths = captured.graph, captured.output_paths()
    returned = [
        value
        for value, hooked in zip(graph.outputs, captured.seen_in(), strict=True)
        if hooked is None
    ]
    found = _C.plan.trained_beside(graph, returned)
    if found is None:
        return ""
    loss = _C.plan.loss_of(graph)
    path = paths[graph.outputs.index(loss)]
    if _NAMES_OF_LOSS.search(path):
        return ""
    output, parameter = found
    other = paths[graph.outputs.index(output)]
    if parameter:
        return f"'{parameter}' gets a gradient from {other} alone, and not from {path}"
    if path == "output[0]":  # `return loss, logits`
        return ""
    return f"{path} looks at no input that {other} is not made of, as labels would be"


def tell_loss_outside(captured, config, outputs) -> None:
    """Says why a model that returns a number is trained by fill-drain."""
    reason = loss_outside(captured)
    if config.schedule == "auto" and outputs != _C.plan.Outputs.all and reason:
        log.warn(
            "deploy",
            f"the loss seems to be computed outside of the model: {reason}. So the schedule is "
            "'gpipe', under which every output has its gradient. If it is the whole loss, "
            "Config(schedule='1f1b') is faster; to be without this line set 'gpipe'",
        )


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
