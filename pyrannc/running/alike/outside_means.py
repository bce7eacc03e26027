"""Means that the training loop takes over tokens of which ranks have different numbers."""

import math

import torch

from pyrannc import live_deployments
from pyrannc.errors import RaNNCError
from pyrannc.job import started
from pyrannc.ranks import on_all
from pyrannc.running import chained_models


def mean(total, count):
    """The mean over the tokens of all ranks: their totals together, by their counts together.

    What a loss that the loop computes as ``total / count`` is in one process, with its gradients,
    also where ranks have different numbers of tokens, or one has none. Every rank calls it, and it
    waits until ``total`` is computed.

    Args:
        total: Of this rank's tokens, such as the result of ``cross_entropy(..., reduction="sum")``:
            a tensor of one number, or, for what is only logged, a number.
        count: How many these are, as a number or a tensor of one.

    Returns:
        The same value on every rank; a tensor where ``total`` is one.

    Raises:
        RaNNCError: On every rank, where one of them has given something else, or all counts
            together are 0; and where no wrapped model is at work on the ranks.

    >>> model = pyrannc.RaNNCModule(torch.nn.Linear(4, 3))
    >>> labels = torch.tensor([2, -100, 0, 1])
    >>> losses = torch.nn.functional.cross_entropy(model(torch.ones(4, 4)), labels, reduction="sum")
    >>> mean(losses, (labels != -100).sum()).backward()
    """
    world = live_deployments.world()
    if world is None:
        if started.by().size != 1 and not live_deployments.in_order():
            raise RaNNCError("mean() before the first call of a wrapped model, which it is about")
        everyones = [_own(total, count)]
    else:
        everyones = on_all(world, lambda: _own(total, count))
    counted = math.fsum(count for _, count, _ in everyones)
    if not counted:
        raise RaNNCError(
            "mean(): the counts of all ranks are 0.\n  Leave a batch without tokens out, on every "
            "rank."
        )
    value = math.fsum(each for each, _, _ in everyones) / counted
    if not isinstance(total, torch.Tensor):
        return value
    share = everyones[world.rank if world else 0][2]
    return _Mean.apply(total, value, counted * (share or 1.0))


def _own(total, count) -> tuple[float, float, float]:
    """The numbers of this rank, and the share of the rows with which its gradients count."""
    found = []
    for name, value in ("total", total), ("count", count):
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise RaNNCError(
                f"mean(): {name} has shape {tuple(value.shape)}; it must be one number"
                + (", such as a loss with reduction='sum'" if name == "total" else "")
            )
        if not isinstance(value, int | float | torch.Tensor):
            kind = type(value).__name__
            raise RaNNCError(f"mean(): {name} is a {kind}; it must be a number or a tensor of one")
        found.append(value.item() if isinstance(value, torch.Tensor) else float(value))
    if not 0 <= found[1] < math.inf:
        raise RaNNCError(f"mean(): count is {found[1]:g}; it must be 0 or more")
    share = chained_models.share_before(total) if isinstance(total, torch.Tensor) else 1.0
    return (*found, share) if share else (0.0, 0.0, share)  # rows of rank 0, if it has any


class _Mean(torch.autograd.Function):
    """``value``, the same to the bit on every rank, and the gradient of ``total / divisor``."""

    @staticmethod
    def forward(ctx, total, value, divisor):
        ctx.divisor = divisor
        of_whole = not total.is_floating_point()
        return torch.full_like(total, value, dtype=torch.get_default_dtype() if of_whole else None)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.divisor, None, None
