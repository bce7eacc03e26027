"""The user's hooks on tensors that a model's call differentiates."""

import functools


def not_without_gradient(tensors) -> None:
    """Lets hooks on ``tensors`` (``Tensor.register_hook``) see gradients only.

    A call is one node of autograd with an edge to each of its parameters. A parameter that has no
    gradient in this backward, such as one of an output that the user leaves out, or any under
    no_sync(), would be visited all the same, and its hooks called with None. Of eager PyTorch they
    are not called then.
    """
    for tensor in tensors:
        hooks = tensor._backward_hooks
        if not hooks:
            continue
        for key, hook in hooks.items():
            if not isinstance(hook, _Sparing):
                hooks[key] = _Sparing(hook)


class _Sparing:
    def __init__(self, hook):
        functools.update_wrapper(self, hook)
        self._hook = hook

    def __call__(self, gradient):
        return None if gradient is None else self._hook(gradient)
