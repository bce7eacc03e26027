"""What goes on with the outputs of a wrapped model: another one, or a mean over all ranks."""

import torch

from pyrannc.errors import RaNNCError

_MARK = "pyrannc: counts with this share of the rows"


def mark(outputs, share) -> None:
    """Remembers of these outputs that their gradients are taken for those of the rank's own mean,
    as ``outside_loss="mean"`` says, and count with ``share``, that of the rank's rows.
    """
    for output in outputs:
        if output is not None and output.grad_fn is not None:
            output.grad_fn.metadata[_MARK] = share


def unweighed(inputs, have_rows) -> list:
    """``inputs`` of a wrapped model, for autograd. Its gradients of them are those of the loss of
    all ranks; where another wrapped model computed them, which weighs what it gets by its share of
    the rows, that share is taken out before.
    """
    return [
        _unweighed(tensor, with_rows) for tensor, with_rows in zip(inputs, have_rows, strict=True)
    ]


def _unweighed(tensor, has_rows):
    shares = _shares_before(tensor)
    if not shares or shares == {1.0}:
        return tensor
    if not has_rows or len(shares) > 1:
        what = "its shares of the rows differ" if has_rows else "it has no rows here"
        raise RaNNCError(
            "an argument was computed by another wrapped model, whose outside_loss is 'mean', and "
            f"{what}: its gradients would count with this rank's share of the rows twice.\n  Wrap "
            'that model with RaNNCModule(..., outside_loss="sum"), or call it under no_grad(). See '
            'docs/settings.md, "A wrapped model that feeds another one".'
        )
    (share,) = shares
    return _Divided.apply(tensor, share) if share else tensor


def share_before(total) -> float:
    """With which share of the rows the gradients of ``total`` count; 1 where no wrapped model that
    weighs them comes before it.

    Raises:
        RaNNCError: It is made of calls that have different shares.
    """
    shares = _shares_before(total)
    if len(shares) > 1:
        raise RaNNCError(
            "mean() of calls in which this rank has different shares of the rows "
            f"({', '.join(f'{share:g}' for share in sorted(shares))}).\n  Take the mean of each, "
            'or wrap their models with RaNNCModule(..., outside_loss="sum").'
        )
    return shares.pop() if shares else 1.0


def _shares_before(tensor) -> set:
    """Those of the wrapped models that come first on each way back from ``tensor``."""
    if tensor.grad_fn is None:
        return set()
    pending, seen, found = [tensor.grad_fn], {tensor.grad_fn}, set()
    while pending:
        node = pending.pop()
        if _MARK in node.metadata:
            found.add(node.metadata[_MARK])
            continue
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        pending.extend(new)
    return found


class _Divided(torch.autograd.Function):
    """Does nothing, and its backward divides by the share."""

    @staticmethod
    def forward(ctx, tensor, share):
        ctx.share = share
        ctx.set_materialize_grads(False)  # a backward that has none visits it, too
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return None if gradient is None else gradient / ctx.share, None
