"""What hooks that only look at a module's calls would see, beside what the model returns."""

from pyrannc.capture.arguments import pytree


def result_of(model, args, kwargs, hooks):
    """What ``model`` returns; where ``hooks`` (``hooks.ModuleHooks`` or None) observe something,
    a list of that and what they would see."""
    if hooks is None:
        return model(*args, **kwargs)
    with hooks.recorded() as calls:
        result = model(*args, **kwargs)
    return [result, calls] if hooks.observed else result


def recorder(calls, path, kind):
    """A hook that adds to ``calls`` what one with keyword arguments sees of module ``path``:
    ``(path, kind, args, kwargs, output)``."""

    def record(_module, args, kwargs, output=None):
        calls.append((path, kind, *map(_copies, (args, kwargs, output))))

    return record


def _copies(tree):
    """The same with copies of its tensors, which nobody changes later."""
    tensors, shape = pytree.flatten(tree)
    return pytree.unflatten(shape, [tensor.detach().clone() for tensor in tensors])
