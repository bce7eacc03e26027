"""What forward hooks see of a model that trains: copies, through which no gradient comes back."""

import torch

from pyrannc.capture.arguments import pytree
from pyrannc.capture.hook_probes import named
from pyrannc.errors import RaNNCError


def refusing(tree, path, requiring):
    """``tree`` with its tensors as a hook of module ``path`` gets them: a backward that comes to
    one is an error, as its gradient would be missing in the model's.

    Args:
        requiring: Of each tensor, whether it requires a gradient in forward().
    """
    if not torch.is_grad_enabled() or not any(requiring):
        return tree
    tensors, shape = pytree.flatten(tree)
    anchor = torch.zeros((), requires_grad=True)
    made = [
        _refusing(anchor, path, tensor) if wanted else tensor
        for tensor, wanted in zip(tensors, requiring, strict=True)
    ]
    return pytree.unflatten(shape, made)


def _refusing(anchor, path, tensor):
    def refuse(*_):
        raise RaNNCError(
            f"a forward hook of {named(path)} asks for a gradient of what it sees, which is a "
            "copy.\n  register_full_backward_hook() of the module, before the first call, sees "
            "gradients."
        )

    made = _Copy.apply(anchor, path, tensor)
    made.register_hook = made.retain_grad = refuse
    return made


class _Copy(torch.autograd.Function):
    """No view, so that hooks may write into it, which is told elsewhere."""

    @staticmethod
    def forward(ctx, _anchor, path, tensor):
        ctx.path = path
        return tensor.clone()

    @staticmethod
    def backward(ctx, _gradient):
        raise RaNNCError(
            f"a backward comes to what a forward hook of {named(ctx.path)} has seen, which is a "
            "copy: no gradient would come to the model from there.\n  Return it from forward(), "
            "beside the result; or detach() it, if it is not to have one."
        )
