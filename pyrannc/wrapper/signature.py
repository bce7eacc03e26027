"""``forward`` of a wrapper has the signature of its model's."""

import inspect
import types

from pyrannc.wrapper import compiled


class ForwardOfModel:
    """In a class of wrappers: a method that calls ``function`` and looks like ``module.forward``.

    Transformers' Trainer, for one, reads there which columns of a data set the model takes.
    """

    def __init__(self, function):
        self._function = function

    def __get__(self, wrapper, owner=None):
        if wrapper is None:
            return self._function
        compiled.leave_alone(type(wrapper))  # torch.compile asks for `forward` before it is called
        ours = self._function
        method = types.FunctionType(
            ours.__code__, ours.__globals__, ours.__name__, ours.__defaults__, ours.__closure__
        )
        method.__doc__ = ours.__doc__
        models = wrapper.module.forward
        if isinstance(models, types.MethodType):
            method.__wrapped__ = models.__func__
        else:  # somebody has put another callable there, which takes no `self`
            method.__signature__ = _with_self(models)
        return types.MethodType(method, wrapper)


def _with_self(function):
    signature = inspect.signature(function)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[own, *signature.parameters.values()])
