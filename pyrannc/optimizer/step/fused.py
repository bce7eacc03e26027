"""Which of torch's implementations a step of the optimizer takes."""

import weakref

import torch

from pyrannc.optimizer.step.participant import Participant

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
        _preferring.add(optimizer)


def prefer_as(optimizer, copied) -> None:
    """Lets a copy of ``optimizer`` take what the optimizer takes."""
    if optimizer in _preferring:
        _preferring.add(copied)


class Fused(Participant):
    def before(self, step):
        if step.optimizer not in _preferring:
            return None
        groups = step.optimizer.param_groups
        changed = [each for each in groups if _possible(each, step.optimizer.state)]
        for group in changed:
            group["fused"] = True
        return changed

    def after(self, step, begun):
        for group in begun:
            group["fused"] = None

    failed = after


def _possible(group, state):
    if group.get("fused", False) is not None or group.get("foreach") is not None:
        return False
    if group.get("differentiable") or group.get("capturable") or torch.is_tensor(group["lr"]):
        return False
    for parameter in group["params"]:
        if parameter.dtype not in _DTYPES:
            return False
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse or not gradient.is_cpu:
            return False
        # It goes through memory from the first number on, and does not look at the strides.
        strides = None if parameter.is_contiguous() else parameter.stride()
        if strides and not _is_dense(parameter):
            return False
        for each in (gradient, *state.get(parameter, {}).values()):
            if torch.is_tensor(each) and each.shape == parameter.shape:
                alike = each.stride() == strides if strides else each.is_contiguous()
                if not alike:
                    return False
    if group.get("momentum") and _some_begin(group, state):
        return False
    # The loop takes a step for each time that a parameter stands there.
    return len(set(map(id, group["params"]))) == len(group["params"])


def _is_dense(parameter):
    """Whether its numbers fill their memory without gaps, in whatever order."""
    sizes = zip(parameter.shape, parameter.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in sizes) + 1 == parameter.numel()


def _some_begin(group, state):
    """Whether some parameters with gradients have a momentum and others do not yet: torch's fused
    SGD begins with all of them at once."""
    begin = {
        state.get(parameter, {}).get("momentum_buffer") is None
        for parameter in group["params"]
        if parameter.grad is not None
    }
    return len(begin) == 2
