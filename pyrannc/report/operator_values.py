"""The results of the operators that this rank computes, in the log."""

import torch

from pyrannc import log
from pyrannc.state.torch_private import TorchDispatchMode


class OperatorValues(TorchDispatchMode):
    """Inside, each result is a line, on every rank: operator, sizes, mean, least and largest."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                log.warn("ops", f"{function} -> {_described(tensor)}")
        return result


def _described(tensor):
    text = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if tensor.numel() == 0 or tensor.is_complex() or tensor.is_meta:
        return text
    numbers = tensor.detach().double()
    return (
        f"{text}: mean {numbers.mean().item():g}, from {numbers.min().item():g} to "
        f"{numbers.max().item():g}"
    )
