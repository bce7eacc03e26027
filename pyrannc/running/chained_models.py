"""A wrapped model that takes what another wrapped model has computed."""

from pyrannc.errors import RaNNCError

_MARK = "pyrannc: counts with the rank's share of the rows"


def mark(outputs) -> None:
    """Remembers of these outputs that their gradients are taken for those of the rank's own mean,
    as ``outside_loss="mean"`` says.
    """
    for output in outputs:
        if output is not None and output.grad_fn is not None:
            output.grad_fn.metadata[_MARK] = True


def refuse_marked(inputs) -> None:
    """The gradients of a wrapped model's inputs are those of the loss of all ranks, which must not
    count with a share of the rows again.
    """
    pending = [tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if _MARK in node.metadata:
            raise RaNNCError(
                "an argument was computed by another wrapped model, whose outside_loss is 'mean': "
                "its gradients would count with this rank's share of the rows twice.\n  Wrap that "
                'model with RaNNCModule(..., outside_loss="sum"), or call it under no_grad(). See '
                'docs/settings.md, "A wrapped model that feeds another one".'
            )
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        pending.extend(new)
