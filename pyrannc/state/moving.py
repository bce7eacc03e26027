"""Tensors of a model go to another device; their Python objects stay."""

import torch
from torch import nn

from pyrannc.errors import RaNNCError
from pyrannc.state import named_tensors, tensor_parts, torch_private
from pyrannc.state.released import is_released


def to_device(model: nn.Module, device: torch.device) -> None:
    """Moves what this rank holds of ``model``, one tensor after the other, with gradients. What it
    has released says that it is there, too."""
    held = {id(each): each for each in named_tensors.tensors(model).values()}.values()
    parts = tensor_parts.as_tensors(held)
    for tensor in held:
        if is_released(tensor):
            tensor.place_elsewhere.device = device
        elif tensor.device != device:
            gradient = tensor.grad
            tensor.grad = None
            take_memory(tensor, tensor.detach().to(device))
            if gradient is not None:
                tensor.grad = gradient.to(device)
    tensor_parts.as_parts(parts)
    for module in model.modules():
        # cuDNN wants the weights of a layer in one piece, or copies them in each call.
        if isinstance(module, nn.RNNBase) and not any(map(is_released, module.parameters())):
            module.flatten_parameters()


def refuse_other_dtypes(model: nn.Module, change) -> None:
    """Raises RaNNCError where ``change(tensor)``, as of ``model.half()``, gives another dtype."""
    for dtype in {each.dtype: None for each in named_tensors.tensors(model).values()}:
        other = change(torch.empty((), dtype=dtype)).dtype
        if other != dtype:
            raise RaNNCError(
                f"the model is to have {other} for {dtype} after the first call, whose plan was "
                "made for that.\n  Change dtypes before it, or call the model under "
                "torch.autocast()."
            )


def take_memory(tensor, other):
    """``tensor`` has the memory of ``other``, which is on another device, from here on."""
    if torch_private.can_share_memory(tensor, other):  # hooks of the user stay, too
        tensor.data = other
        return
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, requires_grad=tensor.requires_grad)
    torch_private.swap_tensors(tensor, other)


def state_to_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Moves what an optimizer keeps of each parameter to where the parameter is; single numbers,
    such as counts of steps, only where a kernel reads them, as torch does."""
    for group in optimizer.param_groups:
        numbers, parts = group.get("fused") or group.get("capturable"), group["params"]
        for parameter in parts:
            state = optimizer.state.get(parameter, {})
            shape = tensor_parts.plain(parameter).shape if state else None
            for name, value in state.items():
                if not isinstance(value, torch.Tensor):
                    continue
                if value.shape == shape if value.dim() else numbers:
                    state[name] = value.to(parameter.device)
