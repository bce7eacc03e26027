"""Tensors without rows among the arguments, such as a temperature: every rank passes the same."""

import zlib

import torch

from pyrannc.errors import RaNNCError
from pyrannc.job.by_rank import by_rank
from pyrannc.loop.coming_to_host import ComingToHost


class WholeArguments:
    """What tells them apart, call by call.

    Nobody waits for an accelerator: what it has of one call is looked at in the next.
    """

    def __init__(self):
        self._coming = {}

    def told(self, call, dims) -> dict:
        """By the path of an argument its number, or a hash of its elements, as text.

        Args:
            dims: The dimension of each tensor of ``call`` that holds the rows; None: none does.
        """
        found = {path: str(sums.value().tolist()) for path, sums in self._coming.items()}
        self._coming = {}
        for index, (tensor, dim) in enumerate(zip(call.tensors, dims, strict=True)):
            if dim is not None or tensor.numel() == 0:
                continue
            path = call.paths[index]
            if tensor.device.type == "cpu":
                found[path] = _text(tensor.detach())
            else:
                self._coming[path] = ComingToHost(_sums(tensor.detach()))
        return found


def _text(tensor):
    if tensor.numel() == 1:
        return str(tensor.item())
    elements = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
    return f"other values of shape {[*tensor.shape]} ({zlib.crc32(elements.numpy()):08x})"


def _sums(tensor):
    """Of a number itself; else of the elements and of their squares."""
    if tensor.numel() == 1:
        return tensor.reshape(1)
    elements = tensor.double()
    return torch.stack([elements.sum(), elements.square().sum()])


def refuse_different(told) -> None:
    """Raises RaNNCError that names an argument. ``told``: of each rank."""
    for path in sorted({name for each in told for name in each}):
        texts = [each.get(path, "none") for each in told]
        if len(set(texts)) > 1:
            raise RaNNCError(
                f"the argument '{path}' has no rows, and is not the same on every rank:"
                f"{by_rank(texts)}\n"
                "  It counts for the rows of all ranks, so every rank passes the same: a count of "
                "tokens is that of all ranks. What differs by rank has an entry for each row."
            )
