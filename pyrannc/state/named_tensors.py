"""The model's tensors by name, and which rank holds which of them.

A tensor that this rank does not hold is released (``released.py``), in the same Python object.
"""

import collections
import contextlib

import torch
from torch import nn

from pyrannc.state import torch_private


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by every name they have; tied ones appear under each.

    In the order of their names, which is the same on all ranks, as that of the modules need not be.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    return dict(sorted((named | dict(model.named_buffers(remove_duplicate=False))).items()))


def once(model: nn.Module):
    """Each tensor with its first name, in an order that is the same on all ranks."""
    seen = set()
    for name, tensor in tensors(model).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def places(model: nn.Module) -> dict[str, tuple[dict, str]]:
    """Where the modules keep each of these: a dictionary, and the key there."""
    return {
        f"{path}.{name}" if path else name: (registry, name)
        for path, module in model.named_modules(remove_duplicate=False)
        for registry in (module._parameters, module._buffers)
        for name in registry
    }


@contextlib.contextmanager
def in_place(model: nn.Module, others: dict[int, torch.Tensor]):
    """Inside, ``others[id(tensor)]`` are where the modules keep these tensors. Afterwards these
    tensors are there again, whatever has been put there inside."""
    before = [(registry, name, registry[name]) for registry, name in places(model).values()]
    try:
        for registry, name, tensor in before:
            registry[name] = others.get(id(tensor), tensor)
        yield
    finally:
        for registry, name, tensor in before:
            registry[name] = tensor


@contextlib.contextmanager
def without_state_hooks(model: nn.Module):
    """Inside, hooks on ``state_dict()`` of the model and its modules do not run."""
    kept = [(each, each._state_dict_hooks, each._state_dict_pre_hooks) for each in model.modules()]
    try:
        for module, _, _ in kept:
            module._state_dict_hooks = collections.OrderedDict()
            module._state_dict_pre_hooks = collections.OrderedDict()
        yield
    finally:
        for module, hooks, pre_hooks in kept:
            module._state_dict_hooks, module._state_dict_pre_hooks = hooks, pre_hooks


def raw(tensor: torch.Tensor):
    """The bytes of a contiguous CPU tensor as a writable buffer that shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def write(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Copies into a tensor that may repeat its memory, as ``torch.ones(1).expand(4)`` does."""
    place = getattr(tensor, "place_of_part", None)
    if place is not None:  # see parts.py
        with torch_private.without_subclasses():
            tensor.detach().copy_(place.cut(content))
        return
    tensor = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor, content = tensor.narrow(dim, 0, 1), content.narrow(dim, 0, 1)
    tensor.copy_(content)


def write_flat(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    """The same of a flat tensor of the whole's numbers."""
    write(tensor, numbers.view(tensor.shape))
