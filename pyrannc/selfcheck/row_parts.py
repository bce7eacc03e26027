"""Rows of a batch: taking them out of tensors and joining them, as a graph's layouts say."""

import torch

from pyrannc import log


def take(tensor, layout, index):
    """The rows ``index`` of a tensor that holds the rows ``apart``."""
    dim, outer, inner = layout.dim, layout.outer, layout.inner
    parts = tensor.unflatten(dim, (outer, tensor.shape[dim] // (outer * inner), inner))
    return parts.index_select(dim + 1, index.to(tensor.device)).flatten(dim, dim + 2)


def join(tensors, sizes, layout):
    """What parts of a batch with ``sizes`` rows give together for one value.

    Rows that are apart stand one part after the other; means are weighted by rows; sums are added;
    what does not depend on the rows is the first part's.
    """
    if layout.kind == "apart":
        dim, outer, inner = layout.dim, layout.outer, layout.inner
        parts = [t.unflatten(dim, (outer, t.shape[dim] // (outer * inner), inner)) for t in tensors]
        return torch.cat(parts, dim + 1).flatten(dim, dim + 2)
    if layout.kind == "mean":
        shares = [tensor * size for tensor, size in zip(tensors, sizes, strict=True)]
        return sum(shares[1:], shares[0]) / sum(sizes)
    if layout.kind == "sum":
        return sum(tensors[1:], tensors[0])
    return tensors[0]


def parts_of(batch, layouts, sizes) -> list[list[torch.Tensor]]:
    """A graph's inputs cut into consecutive row ranges of ``sizes``."""
    parts, first = [], 0
    for size in sizes:
        index = torch.arange(first, first + size)
        first += size
        parts.append(
            [
                take(tensor, layout, index) if layout.kind == "apart" else tensor
                for tensor, layout in zip(batch, layouts, strict=True)
            ]
        )
    return parts


def own_batch(batch, layouts, rows: int, count: int) -> list[torch.Tensor]:
    """The first ``count`` of the ``rows`` rows of a batch, which begin again after the last."""
    index = torch.arange(count) % rows
    made = [
        take(tensor.detach(), layout, index) if layout.kind == "apart" else tensor.detach()
        for tensor, layout in zip(batch, layouts, strict=True)
    ]
    pairs = zip(made, batch, strict=True)
    return [new.clone().requires_grad_(tensor.requires_grad) for new, tensor in pairs]


def other_batch(batch, layouts, rows: int, count: int, seed: int, paths) -> list[torch.Tensor]:
    """``count`` rows made of the ``rows`` rows of a batch: permuted, and repeated or cut.

    Floats are changed a little. Floating tensors of whole numbers are labels, masks or token ids,
    and are left as they are, like integers and flags. ``paths``: names of the tensors, for the log.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(rows, generator=generator)
    index = order.repeat(-(-count // rows))[:count]
    made, labels = [], []
    for tensor, layout, path in zip(batch, layouts, paths, strict=True):
        new = tensor.detach()
        if layout.kind == "apart":
            new = take(new, layout, index)
        if new.is_floating_point() and torch.equal(new, new.round()):
            labels.append(path)
        elif new.is_floating_point():
            # A factor, so that signs, zeros and the range 0..1 stay.
            factor = 1 - 0.05 * torch.rand(new.shape, generator=generator)
            new = new * factor.to(new)
        made.append(new.clone().requires_grad_(tensor.requires_grad))
    if labels:
        log.debug(
            "deploy",
            "guessed which inputs of whole numbers are labels, masks or ids, which the self-check "
            f"leaves as they are: {', '.join(labels)}",
        )
    return made
