"""Calls of custom autograd functions, caught while a model is captured.

Up to torch 2.13 every ``apply()`` is a Python method, also one that was kept before (``f =
F.apply``). From 2.14 on ``Function.apply`` is a method of C: replacing it catches what is looked up
during the capture, and a kept one is caught where it calls ``forward()`` of its class.
"""

import contextlib
import functools

import torch
from torch.utils.checkpoint import CheckpointFunction

from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_private import (
    BackwardContext,
    SingleLevelFunction,
    apply_is_native,
    bind_default_args,
    transforms_are_active,
)


@contextlib.contextmanager
def caught(session, call, call_kept):
    """Every custom function that the captured model applies is handed over inside.

    Args:
        call: ``call(function, apply, arguments)`` returns what ``function`` gives for its bound
            positional arguments; ``apply(*arguments)`` is torch's own call.
        call_kept: ``call_kept(function, apply, forward, arguments, grad_enabled)`` does this inside
            of torch's own call of a kept ``apply``. ``forward()`` is the user's, with the context
            among its arguments where it takes one; ``grad_enabled`` is the caller's mode.
    """

    def apply(cls, *args, **kwargs):
        native = super(SingleLevelFunction, cls).apply
        if not session.here() or transforms_are_active():
            return native(*args, **kwargs)
        if apply_is_native and has_setup(cls):
            args, kwargs = bind_default_args(cls.forward, args, kwargs)
        if kwargs:
            return native(*args, **kwargs)  # torch's own error
        if issubclass(cls, CheckpointFunction):  # the plan decides what is recomputed
            function, _, *arguments = args
            return function(*arguments)
        return call(cls, native, args)

    owner = torch.autograd.Function if apply_is_native else SingleLevelFunction
    with replaced(owner, apply=classmethod(apply)), contextlib.ExitStack() as stack:
        if apply_is_native:
            _catch_kept(session, call_kept, stack)
        yield


def has_setup(function) -> bool:
    """Whether the context is filled by ``setup_context()``, so that ``forward()`` has none."""
    return function.setup_context is not SingleLevelFunction.setup_context


def _catch_kept(session, call_kept, stack):
    grad_enabled = True  # in the caller of the function whose context was made last

    def make_context(_context, *_args, **_kwargs):
        nonlocal grad_enabled
        if session.here():
            grad_enabled = torch.is_grad_enabled()

    def forward_of(function):
        original = function.forward

        @functools.wraps(original)
        def forward(*arguments, **kwargs):
            if not session.here() or transforms_are_active():
                return original(*arguments, **kwargs)
            native = super(SingleLevelFunction, function).apply
            return call_kept(function, native, original, arguments, grad_enabled)

        return staticmethod(forward)

    def setup_of(function):
        original = function.setup_context

        @functools.wraps(original)
        def setup_context(*arguments, **kwargs):
            if not session.here():
                return original(*arguments, **kwargs)
            with session.hidden():
                return original(*arguments, **kwargs)

        return staticmethod(setup_context)

    stack.enter_context(replaced(BackwardContext, __init__=make_context))
    patches = []  # made before any is in place: classes inherit from each other
    for function in _below(torch.autograd.Function):
        if issubclass(function, CheckpointFunction):
            continue  # looked up when it is applied
        setup = {"setup_context": setup_of(function)} if has_setup(function) else {}
        patches.append((function, {"forward": forward_of(function), **setup}))
    for function, attributes in patches:
        stack.enter_context(replaced(function, **attributes))


def _below(function):
    """The classes that inherit from ``function``, each once."""
    found, ahead = {}, [function]
    while ahead:
        for each in ahead.pop().__subclasses__():
            if each not in found:
                found[each] = None
                ahead.append(each)
    return list(found)
