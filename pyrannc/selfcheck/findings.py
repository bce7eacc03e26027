"""What the self-check and the captured graph tell the user before planning."""

import torch

from pyrannc import _C, log
from pyrannc.errors import ConfigError, TraceError
from pyrannc.selfcheck import check
from pyrannc.state import named_tensors


def self_check(model, captured, call, config, memory, home=None, lacks_values=False) -> dict:
    """Compares the capture with eager when it fits; returns what it proved.

    Args:
        home: Where the model is, if it will be moved to another device; the check runs there.
        lacks_values: It has none before it is cut.
    """
    args, kwargs = call
    needed = 3 * sum(tensor.nbytes for tensor in named_tensors.tensors(model).values())
    if not config.self_check:
        log.info("deploy", "self-check of the capture skipped: self_check is off")
    elif lacks_values:
        log.info(
            "deploy",
            "self-check of the capture skipped: the model has no values before each rank holds its "
            "part",
        )
    elif needed > memory:
        log.info(
            "deploy",
            "self-check of the capture skipped: the whole model needs about "
            f"{_C.util.human_bytes(needed)}, a rank has {_C.util.human_bytes(memory)}",
        )
    else:
        report = _checked(model, captured, args, kwargs, home)
        if report is None:
            return {"proved": False, "refuted": ""}
        report.raise_if_wrong()
        log.info("deploy", f"self-check of the capture: {report}")
        return {"proved": report.rows_proved, "refuted": report.rows_interact}
    return {"proved": False, "refuted": ""}


def _checked(model, captured, args, kwargs, home):
    """The report; None where a model that will be moved does not run where it is."""
    try:
        return check.check(model, captured, args, kwargs, home=home)
    except TraceError as error:
        if home is None:
            raise
        log.info(
            "deploy",
            f"self-check of the capture skipped: the model does not run on {home}, where it is "
            f"planned for ({str(error).splitlines()[0]})",
        )
        return None


def mixing_reason(captured, proved: bool, refuted: str) -> str:
    """Why only the whole batch at once gives the model's numbers; empty when rows stay apart."""
    if captured.alone:
        return str(captured.alone)
    if reason := _C.ir.why_rows_interact(captured.graph):
        return reason
    if refuted:
        return f"the self-check found that {refuted}"
    if proved:
        return ""
    parts = (*captured.preludes, captured.graph)
    return next(filter(None, map(_C.ir.why_rows_may_interact, parts)), "")


def tell(captured, mixing, optimizers, world) -> None:
    """Tells the user, once, what is not as in the model.

    Args:
        mixing: What :func:`mixing_reason` found.

    Raises:
        ConfigError: An optimizer cannot take the gradients; on every rank.
    """
    if world.rank == 0:
        if not mixing:
            warn_of_averages(captured.graph)
        if captured.frozen_attributes:
            warn_of_attributes(captured.frozen_attributes)
        if captured.written_arguments:
            warn_of_arguments(captured.written_arguments)
        if world.size > 1 and (counts := captured.counts()) and _returns_sum(captured):
            warn_of_counts(counts)
    if captured.made_dense:
        note_dense(captured.made_dense, optimizers, world)


def warn_of_averages(graph) -> None:
    """Says what is not the number of the whole batch, once."""
    found = _C.ir.by_share_nodes(graph)
    if not found:
        return
    node = graph.nodes[found[0]]
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    log.warn(
        "deploy",
        f"{node.op} (module '{node.module}', {node.source}{others}) is not linear in a mean over "
        "the batch. Each micro-batch computes it from its own rows, and the results are averaged "
        "by rows: with several replicas or micro-batches this is not what one process gives. "
        "Config(exact_loss=True) keeps the whole batch together.",
    )


def warn_of_attributes(changed) -> None:
    """Says which attributes of the model no longer change, once."""
    names = ", ".join(f"'{path}'" for path in changed[:3])
    others = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    log.warn(
        "deploy",
        f"forward() changes attributes of the model: {names}{others}. It runs as a captured graph "
        "from now on, which does not update them, and computes with what they held at its capture. "
        "Return a tensor that you want to see as an output of forward(), and keep numbers that "
        "change in a buffer.",
    )


def _returns_sum(captured) -> bool:
    """Whether one of the numbers that the model returns, with a gradient, is a sum over the rows of
    all ranks."""
    graph = captured.graph
    of_result = [
        graph.values[value]
        for value, seen_in in zip(graph.outputs, captured.seen_in(), strict=True)
        if seen_in is None
    ]
    return any(v.rows.kind == "sum" and not v.dims and v.requires_grad for v in of_result)


def warn_of_arguments(paths) -> None:
    """Says which arguments no longer change, once."""
    others = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    log.warn(
        "deploy",
        f"forward() writes into its arguments: {', '.join(paths[:3])}{others}. It runs as a "
        "captured graph, which computes with what it has written, but the tensors of the loop stay "
        "what they were. Return what you want to see of them.",
    )


def warn_of_counts(paths) -> None:
    """Says which number is of this rank's rows, beside a sum over those of all ranks, once."""
    log.warn(
        "deploy",
        f"forward() returns a sum over the rows of all ranks, and {paths[0]}, which follows from "
        "the number of this rank's rows: one divided by the other is no mean. Divide in forward(), "
        "or count with a tensor, as torch.ones_like(x[:, 0]).sum(), which counts those of all "
        "ranks, too.",
    )


def note_dense(nodes, optimizers, world) -> None:
    """Says once that gradients which the model wants sparse are dense."""
    op, module, source = nodes[0]
    others = f", and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    place = f"{op} (module '{module}', {source}{others})"
    if any(isinstance(each, torch.optim.SparseAdam) for each in optimizers):
        raise ConfigError(
            f"SparseAdam takes sparse gradients only, but that of {place} is dense: micro-batches "
            "and replicas sum gradients in arrays.\n  Use Adam or AdamW."
        )
    if world.rank == 0:
        log.info(
            "deploy", f"{place} has sparse=True, but its gradient is dense, with equal numbers"
        )
