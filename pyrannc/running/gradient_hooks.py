"""The user's hooks on tensors that a model's call differentiates."""

import functools


def only_with_gradient(tensors) -> None:
    """Lets hooks on ``tensors`` run only in backwards that have a gradient for them.

    A call is one node of autograd with an edge to each of its parameters. One that has no gradient
    in this backward, such as those of an output that the user leaves out, or all under no_sync(),
    is visited all the same, with None; eager PyTorch does not get there. To be called before the
    hooks are: in a backward, or, of tensors that nobody holds until then, in the forward.
    """
    for tensor in tensors:
        if after := tensor._post_accumulate_grad_hooks:
            _watch(tensor, after)
        if hooks := tensor._backward_hooks:
            for key, hook in hooks.items():
                if not isinstance(hook, _Sparing | _Watch) and not _counts_calls(hook):
                    hooks[key] = _Sparing(hook)


def _counts_calls(hook):
    """Those of torch.autograd.graph.register_multi_grad_hook wait for a call, also with None, of
    every tensor that is visited."""
    return getattr(hook, "__module__", None) == "torch.autograd.graph"


class _Sparing:
    """A hook that is not called with None."""

    def __init__(self, hook):
        functools.update_wrapper(self, hook)
        self._hook = hook

    def __call__(self, gradient):
        return None if gradient is None else self._hook(gradient)


class _Watch:
    """A hook that knows whether there is a gradient this time, for those that come after it has
    been added to ``.grad``."""

    has_gradient = True

    def __call__(self, gradient):
        self.has_gradient = gradient is not None


def _watch(tensor, after):
    new = [key for key, hook in after.items() if not isinstance(hook, _Following)]
    if not new:
        return
    present = (tensor._backward_hooks or {}).values()
    watch = next((hook for hook in present if isinstance(hook, _Watch)), None)
    if watch is None:
        watch = _Watch()
        tensor.register_hook(watch)
    for key in new:
        after[key] = _Following(after[key], watch)


class _Following:
    """A hook for after the gradient has been added, called where there was one."""

    def __init__(self, hook, watch):
        functools.update_wrapper(self, hook)
        self._hook, self._watch = hook, watch

    def __call__(self, tensor):
        return self._hook(tensor) if self._watch.has_gradient else None
