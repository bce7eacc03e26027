"""What hooks that only look at a module's calls would see, beside what the model returns."""

from pyrannc.capture.arguments import pytree


def result_of(model, args, kwargs, hooks, watching=None):
    """What ``model`` returns; where ``hooks`` (``hooks.ModuleHooks`` or None) observe something,
    a list of that and what they would see. ``watching``: see ``ModuleHooks.recorded()``."""
    if hooks is None:
        return model(*args, **kwargs)
    with hooks.recorded(watching) as calls:
        result = model(*args, **kwargs)
    return [result, calls] if hooks.observed or hooks.watched else result


def recorder(calls, path, kind):
    """A hook that adds to ``calls`` what one with keyword arguments sees of module ``path``:
    ``(path, kind, args, kwargs, output, requiring)``, the last of each tensor whether it requires
    a gradient."""

    def record(_module, args, kwargs, output=None):
        tensors, _ = pytree.flatten([args, kwargs, output])
        requiring = [tensor.requires_grad for tensor in tensors]
        calls.append((path, kind, *map(_copies, (args, kwargs, output)), requiring))

    return record


def _copies(tree):
    """The same with copies of its tensors, which nobody changes later."""
    tensors, shape = pytree.flatten(tree)
    return pytree.unflatten(shape, [tensor.detach().clone() for tensor in tensors])
