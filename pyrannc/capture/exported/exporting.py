"""One run of a model under torch.export: what patches of torch ask a session for, which they share
with torch's tracer (:class:`pyrannc.capture.session.Session`).
"""

import contextlib
import itertools
import threading

import torch
from torch import library as operators
from torch.utils.checkpoint import CheckpointFunction

from pyrannc.capture import mask_selections, torch_favours
from pyrannc.capture.arguments import pytree
from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_patches import (
    PythonCall,
    conversions,
    detached_data,
    gradient_hooks,
    refuse_hidden_parameters,
)
from pyrannc.capture.torch_private import SingleLevelFunction
from pyrannc.errors import TraceError

# What torch makes of the backward of an operator that a script has registered; it is in the graph
# itself.
_OF_OPERATORS = "GeneratedBackwardFor_"

_LIBRARY = operators.Library("rannc_export", "DEF")
_LIBRARY.define("python_call(int number, Tensor[] tensors) -> Tensor[]")
#: Stands for one call of a custom autograd function, whose backward torch.export would lose.
PYTHON_CALL = torch.ops.rannc_export.python_call.default
_numbers = itertools.count()
_calls = {}  # number of a call that is being exported: what it computes


@operators.register_fake("rannc_export::python_call", lib=_LIBRARY)
def _(number, tensors):
    return _calls[number](tensors)


class Exporting:
    """One run.

    Args:
        paths: Of modules, by their ids.
        always: The model runs by itself, as under torch.export.
    """

    def __init__(self, paths, always=False):
        self.paths, self._always = paths, always
        self.python_calls = {}  # PythonCall by the number in a PYTHON_CALL
        self._thread = threading.get_ident()

    def here(self) -> bool:
        """Whether the caller runs in the exporting thread, and torch.export looks."""
        watched = self._always or torch.compiler.is_exporting()
        return watched and threading.get_ident() == self._thread

    def hidden(self):
        """A context for what is no part of the model."""
        return contextlib.nullcontext()

    def value_of(self, tensor):
        return tensor

    def are_same(self, value, other) -> bool:
        """Whether two tensors, as ``value_of`` gives them, are known to be equal."""
        return value is other

    def call_python(self, function, call, arguments):
        """One call of the autograd function ``function``, as one operator.

        Args:
            call: ``call(*arguments)`` makes it.
        """
        tensors, shape = pytree.flatten(arguments)
        mask_selections.refuse_in(shape)
        refuse_hidden_parameters(function, arguments, {id(tensor) for tensor in tensors})
        made = []

        def compute(given):
            versions = [tensor._version for tensor in given]
            outputs = call(*pytree.unflatten(shape, list(given)))
            found, made[:] = (lambda found, form: (found, [form]))(*pytree.flatten(outputs))
            written = versions != [tensor._version for tensor in given]
            if written or any(each is tensor for each in found for tensor in given):
                raise TraceError(
                    f"torch.export would lose what the autograd function {function.__qualname__} "
                    "writes into a tensor that it is given, or that it returns it.\n  Use "
                    "Config(frontend='torchscript'), or return new tensors."
                )
            return found

        number = next(_numbers)
        _calls[number] = compute
        try:
            results = PYTHON_CALL(number, tensors)
        finally:
            del _calls[number]
        self.python_calls[number] = PythonCall(function, shape)
        return pytree.unflatten(made[0], results)

    def functions(self):
        """Custom autograd functions."""

        def apply(cls, *args, **kwargs):
            call = super(SingleLevelFunction, cls).apply
            if not self.here() or cls.__name__.startswith(_OF_OPERATORS):
                return call(*args, **kwargs)
            if issubclass(cls, CheckpointFunction):  # the plan decides what is recomputed
                function, _, *arguments = args
                return function(*arguments)
            return call(*args) if self._always else self.call_python(cls, call, args)

        return replaced(SingleLevelFunction, apply=classmethod(apply))

    @contextlib.contextmanager
    def patched(self):
        with contextlib.ExitStack() as stack:
            for patch in (torch_favours.done, conversions, detached_data, gradient_hooks):
                stack.enter_context(patch(self))
            stack.enter_context(self.functions())
            stack.enter_context(mask_selections.allowed(self, replaced))
            yield
