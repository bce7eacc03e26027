"""Which of torch's implementations a step of the optimizer takes."""

import contextlib
import weakref

import torch

from pyrannc.job import process

_HAVE_ONE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
# With 16 bits the loop rounds after each operator and the fused one at the end: not in last bits.
_DTYPES = (torch.float32, torch.float64)
_preferring = weakref.WeakSet()  # optimizers


def prefer(optimizer) -> None:
    """Lets an optimizer on the CPU take torch's fused implementation, in groups where the user
    chose neither ``fused`` nor ``foreach``: it goes over each parameter once and needs no
    temporaries.

    torch itself chooses one for GPUs in this way, and on CPUs a loop of one operator after the
    other. Results differ in the last bits. Between steps the groups say what the user said.
    """
    if type(optimizer) in _HAVE_ONE:
        process.around_optimizer_steps("implementation", _around)
        _preferring.add(optimizer)


def prefer_as(optimizer, copied) -> None:
    """Lets a copy of ``optimizer`` take what the optimizer takes."""
    if optimizer in _preferring:
        _preferring.add(copied)


@contextlib.contextmanager
def _around(optimizer, closure):
    """The scope of a step; it gives the closure to step with."""
    changed = []
    try:
        for group in optimizer.param_groups if optimizer in _preferring else ():
            if _possible(group, optimizer.state):
                group["fused"] = True
                changed.append(group)
        yield closure
    finally:
        for group in changed:
            group["fused"] = None


def _possible(group, state):
    if group.get("fused", False) is not None or group.get("foreach") is not None:
        return False
    if group.get("differentiable") or group.get("capturable") or torch.is_tensor(group["lr"]):
        return False
    for parameter in group["params"]:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse or not gradient.is_cpu:
            return False
        # It goes through memory from the first number on, and does not look at the strides.
        if not (_is_dense(parameter) and _laid_out_alike(parameter, gradient, state)):
            return False
    if group.get("momentum") and _some_begin(group, state):
        return False
    if len(set(map(id, group["params"]))) < len(group["params"]):
        return False  # the loop takes a step for each time that a parameter stands there
    return all(parameter.dtype in _DTYPES for parameter in group["params"])


def _is_dense(parameter):
    """Whether its numbers fill their memory without gaps, in whatever order."""
    if parameter.is_contiguous():
        return True
    sizes = zip(parameter.shape, parameter.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in sizes) + 1 == parameter.numel()


def _laid_out_alike(parameter, gradient, state):
    if parameter.dim() < 2 and parameter.is_contiguous():  # most of them, in a small model
        return gradient.is_contiguous()
    strides = parameter.stride()
    return gradient.stride() == strides and all(
        value.stride() == strides
        for value in state.get(parameter, {}).values()
        if torch.is_tensor(value) and value.shape == parameter.shape
    )


def _some_begin(group, state):
    """Whether some parameters with gradients have a momentum and others do not yet: torch's fused
    SGD begins with all of them at once."""
    begin = {
        state.get(parameter, {}).get("momentum_buffer") is None
        for parameter in group["params"]
        if parameter.grad is not None
    }
    return len(begin) == 2
