"""Targets of the training loop as long as outputs of padded arguments."""

import torch

from pyrannc import live_deployments
from pyrannc.errors import RaNNCError


def padded(targets: torch.Tensor, value: float = -100) -> torch.Tensor:
    """``targets`` with ``value`` up to the length to which ``RaNNCModule(..., pad=...)`` has padded
    an argument in the last call, at the same side.

    For a loss that the loop computes of outputs, which have that length. It is found by an argument
    that began with the sizes of ``targets``, ``[rows, length]``.

    Args:
        value: The default is the ``ignore_index`` of torch's losses.

    Raises:
        RaNNCError: No such argument was padded in the last call, or several to other lengths.

    >>> model = pyrannc.RaNNCModule(torch.nn.Embedding(9, 4), pad={"input": 0}, pad_to=8)
    >>> scores = model(torch.ones(2, 5, dtype=torch.int64))
    >>> scores.shape, padded(torch.ones(2, 5)).shape
    (torch.Size([2, 8, 4]), torch.Size([2, 8]))
    """
    shape = tuple(targets.shape)
    models = live_deployments.in_order()
    found = set().union(*(each.task.padding.widths_like(shape) for each in models))
    if len(found) != 1:
        what = "several arguments, padded to other lengths, were" if found else "no argument was"
        raise RaNNCError(
            f"padded(): targets are {list(shape)}, and {what} of these sizes in the last call.\n"
            "  RaNNCModule(..., pad={'its name': 0}) names the arguments that are padded; targets "
            "begin with the rows and the length of one of them, as it was given."
        )
    (widths,) = found
    return torch.nn.functional.pad(targets, widths, value=value) if any(widths) else targets
