"""Tensors of a model that look at the same numbers, though they are not one tensor."""

import torch

from pyrannc.state import named_tensors
from pyrannc.state.released import is_released


def pairs(changing: dict, others: dict) -> list[tuple[str, str]]:
    """Names of tensors, the first of ``changing``, the second of ``others``, that have numbers in
    common. Tensors are by name; the same tensor under two names is no pair.

    >>> flat = torch.zeros(6)
    >>> pairs({"a": flat[:3]}, {"b": flat[3:], "c": flat[2:4].t()})
    [('a', 'c')]
    """
    by_memory = {}
    for name, tensor in others.items():
        if tensor.numel() and not is_released(tensor) and not tensor.is_meta:
            by_memory.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    return [
        (name, other)
        for name, tensor in changing.items()
        if tensor.numel() and not is_released(tensor) and not tensor.is_meta
        for other, candidate in by_memory.get(tensor.untyped_storage().data_ptr(), ())
        if candidate is not tensor and _overlap(tensor, candidate)
    ]


def _overlap(a, b) -> bool:
    first, last = max(_begin(a), _begin(b)), min(_end(a), _end(b))
    if first >= last:
        return False
    if a.dtype != b.dtype:
        return True
    places = torch.zeros(a.untyped_storage().nbytes() // a.itemsize, dtype=torch.bool)
    seen = [places.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (a, b)]
    named_tensors.write(seen[0], torch.ones(()).expand(a.shape))
    return bool(seen[1].any())


def _begin(tensor) -> int:
    return tensor.storage_offset() * tensor.itemsize


def _end(tensor) -> int:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return _begin(tensor) + (1 + sum((size - 1) * step for size, step in steps)) * tensor.itemsize
