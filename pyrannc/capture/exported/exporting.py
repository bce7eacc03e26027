"""One run of a model under torch.export: what patches of torch ask a session for, which they share
with torch's tracer (:class:`pyrannc.capture.session.Session`).
"""

import contextlib
import dataclasses
import itertools
import threading

import torch
from torch import library as operators
from torch.overrides import TorchFunctionMode

from pyrannc.capture import mask_selections, torch_favours
from pyrannc.capture.arguments import pytree
from pyrannc.capture.exported.known import Known
from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_patches import (
    PythonCall,
    conversions,
    detached_data,
    gradient_hooks,
    kept_gradients,
    refuse_hidden_parameters,
)
from pyrannc.capture.torch_private import set_grad_unrecorded
from pyrannc.capture.values import (
    autograd_functions,
    checks,
    placeholders,
    row_lists,
    whole_modules,
)
from pyrannc.errors import TraceError

# What torch makes of the backward of an operator that a script has registered; it is in the graph
# itself.
_OF_OPERATORS = "GeneratedBackwardFor_"

# Methods of Python by the operators that they call.
_OPERATORS = {
    "__and__": "bitwise_and", "__eq__": "eq", "__ge__": "ge", "__gt__": "gt",
    "__invert__": "bitwise_not", "__le__": "le", "__lt__": "lt", "__ne__": "ne",
    "__or__": "bitwise_or",
}  # fmt: skip
_CASTS = frozenset(("to", "long", "int"))
# What is kept of masks and of counts of them.
_OF_MASKS = mask_selections.SAME | _CASTS | {"sum"}
_LIBRARY = operators.Library("rannc_export", "DEF")
_LIBRARY.define("python_call(int number, Tensor[] tensors) -> Tensor[]")
#: Stands for one call of a custom autograd function, whose backward torch.export would lose.
PYTHON_CALL = torch.ops.rannc_export.python_call.default
_LIBRARY.define("check(int number, Tensor[] tensors) -> ()")
#: Stands for a check of the model's that the graph makes again.
CHECKED = torch.ops.rannc_export.check.default
torch.fx.node.has_side_effect(CHECKED)
_numbers = itertools.count()
_calls = {}  # number of a call that is being exported: what it computes


@operators.register_fake("rannc_export::python_call", lib=_LIBRARY)
def _(number, tensors):
    return _calls[number](tensors)


@operators.register_fake("rannc_export::check", lib=_LIBRARY)
def _(_number, _tensors):
    return None


@dataclasses.dataclass(frozen=True)
class _Call:
    """One that has made a mask, or counts of it."""

    result: torch.Tensor
    name: str
    given: tuple
    versions: list


def _versions(tensors):
    return [each._version for each in tensors if isinstance(each, torch.Tensor)]


class _Followed(TorchFunctionMode):
    """Tells ``session.looks`` and ``session.known`` what is called, by the names of operators, and
    keeps what masks become."""

    def __init__(self, session):
        super().__init__()
        self._session = session
        self._made = {}  # id of a result: the result, name, arguments

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self._session.here():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        name = _OPERATORS.get(name, name)
        known = self._session.known.computes(func, name, args, kwargs)
        result = func(*args, **kwargs)
        self._session.known.add(result, name, args, known)
        self._session.looks.add(name, args, kwargs, result)
        if name in _OF_MASKS and isinstance(result, torch.Tensor):
            given = (*args, *kwargs.values())
            self._made[id(result)] = _Call(result, name, given, _versions((result, *given)))
        return result

    def are_same(self, value, other) -> bool:
        """Whether two tensors are computed alike from the same."""
        if value is other or not isinstance(value, torch.Tensor):
            return value is other or pytree.equal(value, other)
        call, another = self._call(value), self._call(other)
        if call is None or another is None or call.name != another.name:
            return False
        return len(call.given) == len(another.given) and all(
            map(self.are_same, call.given, another.given)
        )

    def are_counts(self, lengths, flat) -> bool:
        """Whether they are ``mask.sum(-1)`` of the matrix that has become ``flat``."""
        count, reshaped = self._call(lengths), self._call(flat)
        while count is not None and count.name in _CASTS:
            count = self._call(count.given[0])
        if count is None or reshaped is None or (count.name, reshaped.name) != ("sum", "reshape"):
            return False
        mask, *dims = count.given
        return mask.dim() == 2 and dims in ([-1], [1]) and self.are_same(mask, reshaped.given[0])

    def _call(self, tensor):
        """What has made it, where nothing was written since."""
        call = self._made.get(id(tensor))
        known = call is not None and call.result is tensor
        return call if known and call.versions == _versions((tensor, *call.given)) else None


class Exporting:
    """One run.

    Args:
        paths: Of modules, by their ids.
        always: The model runs by itself, as under torch.export.
        whole: Modules each call of which is one node.
    """

    makes_symbols = True  # torch.export does of what a tensor is asked

    mode = contextlib.nullcontext()  # that of torch.export is on where ours is asked for

    def __init__(self, paths, always=False, whole=()):
        self.paths, self._always, self._whole = paths, always, whole
        # Name and PythonCall by the number in a PYTHON_CALL or CHECKED.
        self.python_calls = {}
        self.looks, self.known = checks.Looks(), Known()
        self.row_lists = row_lists.RowLists()
        self.reader = None
        self._followed = _Followed(self)
        self._thread, self._hidden = threading.get_ident(), False

    def here(self) -> bool:
        """Whether the caller runs in the exporting thread, and torch.export looks."""
        if threading.get_ident() != self._thread or self._hidden:
            return False
        return self._always or torch.compiler.is_exporting()

    @contextlib.contextmanager
    def hidden(self):
        """A context for what is no part of the model."""
        before, self._hidden = self._hidden, True
        try:
            yield
        finally:
            self._hidden = before

    def value_of(self, tensor):
        return tensor

    def are_same(self, value, other) -> bool:
        """Whether two tensors, as ``value_of`` gives them, are known to be equal."""
        return self._followed.are_same(value, other)

    def call_python(self, function, call, arguments):
        """One call of the autograd function ``function``, as one operator.

        Args:
            call: ``call(*arguments)`` makes it.
        """
        tensors, shape = pytree.flatten(arguments)
        mask_selections.refuse_in(shape)
        refuse_hidden_parameters(function, arguments, {id(tensor) for tensor in tensors})
        made = []  # the shape of what it returns

        def compute(given):
            versions = [tensor._version for tensor in given]
            with self.hidden():
                outputs = call(*pytree.unflatten(shape, list(given)))
            found, form = pytree.flatten(outputs)
            made.append(form)
            written = versions != [tensor._version for tensor in given]
            if written or any(each is tensor for each in found for tensor in given):
                raise TraceError(
                    f"torch.export would lose what the autograd function {function.__qualname__} "
                    "writes into a tensor that it is given, or that it returns it.\n  Use "
                    "Config(frontend='torchscript'), or return new tensors."
                )
            return found

        results = self._one_operator(
            function.__name__, PythonCall(function, shape), tensors, compute
        )
        return pytree.unflatten(made[-1], results)

    def call_whole(self, module, args, kwargs):
        """One call of a module, as one operator."""
        call, tensors = whole_modules.prepared(module, args, kwargs)
        made = []

        def compute(given):
            results, shape = whole_modules.tried(self, module, call, given)
            made.append(shape)
            return results

        results = self._one_operator(type(module).__name__, call, tensors, compute)
        return pytree.unflatten(made[-1], results)

    def _one_operator(self, name, call, tensors, compute):
        number = next(_numbers)
        _calls[number] = compute
        try:
            results = PYTHON_CALL(number, tensors)
        finally:
            del _calls[number]
        self.python_calls[number] = name, call
        return results

    def known_number(self, tensor):
        """The only element of ``tensor``, or None where it is not known."""
        with self.hidden():
            return self.known.number(tensor)

    def record_check(self, call, leaves):
        """``call`` looks at ``leaves`` in each run; what comes later takes the first from there."""
        number = next(_numbers)
        self.python_calls[number] = checks.CHECK, call
        CHECKED(number, leaves)

    def functions(self):
        """Custom autograd functions."""

        def call(cls, apply, args):
            if cls.__name__.startswith(_OF_OPERATORS) or self._always:
                return apply(*args)
            return self.call_python(cls, apply, args)

        def call_kept(cls, apply, forward, arguments, grad_enabled):
            """The call around this one is no part of the graph: nothing records it."""
            if cls.__name__.startswith(_OF_OPERATORS) or self._always:
                return forward(*arguments)
            args = arguments if autograd_functions.has_setup(cls) else arguments[1:]
            try:
                set_grad_unrecorded(grad_enabled)
                return self.call_python(cls, apply, args)
            finally:
                set_grad_unrecorded(False)  # as torch has set it for forward()

        return autograd_functions.caught(self, call, call_kept)

    @contextlib.contextmanager
    def modules(self):
        """Those that are one node; torch.export itself replaces ``__call__`` of all."""

        def whole_or(original):
            def forward(module, *args, **kwargs):
                if self.here() and any(module is each for each in self._whole):
                    return self.call_whole(module, args, kwargs)
                return original(module, *args, **kwargs)

            return forward

        with contextlib.ExitStack() as stack:
            for kind in {type(module) for module in self._whole}:
                stack.enter_context(replaced(kind, forward=whole_or(kind.forward)))
            yield

    def are_counts(self, lengths, flat) -> bool:
        return self._followed.are_counts(lengths, flat)

    @contextlib.contextmanager
    def patched(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._followed)
            for patch in (
                torch_favours.done, conversions, detached_data, gradient_hooks,
                kept_gradients, placeholders.checked, row_lists.joined, checks.repeated,
            ):  # fmt: skip
                stack.enter_context(patch(self))
            stack.enter_context(self.functions())
            stack.enter_context(self.modules())
            stack.enter_context(mask_selections.allowed(self, replaced))
            yield
