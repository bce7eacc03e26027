"""One trace of a model on FakeTensors: what Python must patch while torch's tracer records.

A FakeTensor has a shape, a dtype and a device, but no memory. All patches are of classes and
functions of torch, act only in the thread that traces, and are taken back afterwards.
"""

import contextlib
import threading

import torch

from pyrannc import _C
from pyrannc.capture import mask_selections, torch_favours
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.explained import OWN_PATH, TORCH_PATH
from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_patches import (
    calls,
    constants,
    conversions,
    detached_data,
    gradient_hooks,
    is_tracing,
    kept_gradients,
    module_paths,
    plain_sizes,
    settings,
)
from pyrannc.capture.torch_private import (
    ASK_DEVICE,
    READ_NUMBER,
    FakeTensorMode,
    TorchDispatchMode,
    value_in_trace,
)
from pyrannc.capture.values import checks, known_numbers, placeholders, row_lists, whole_modules
from pyrannc.capture.values.checks import CHECK


class Session:
    """One trace: torch's tracer, and the patches around it."""

    makes_symbols = False  # of what a tensor is asked; else torch raises an error

    def __init__(self, mode: FakeTensorMode, paths, whole=frozenset()):
        self.tracer = _C.frontend.Tracer(TORCH_PATH, OWN_PATH)
        self.mode = mode
        self.paths = paths  # id of a module -> its path
        self.whole = whole  # paths of modules each call of which is one node
        self.thread = threading.get_ident()
        self.looks = checks.Looks()
        self.row_lists = row_lists.RowLists()
        self.buffers = []  # what stands for each, name, the model's own tensor
        self.buffers_read = known_numbers.BuffersRead()
        self.reader = None  # of the numbers of the run that is made
        self.failure = None  # (exception, path of the innermost module that raised it)

    def here(self) -> bool:
        """Whether the caller runs in the traced thread, under the tracer."""
        return threading.get_ident() == self.thread and is_tracing()

    def hidden(self):
        """A context inside which torch does not record."""
        return _Hidden(self.tracer)

    def value_of(self, tensor):
        return value_in_trace(tensor)

    def are_same(self, value, other) -> bool:
        """Whether two tensors, as ``value_of`` gives them, are known to be equal."""
        return mask_selections.are_same(value, other)

    def are_counts(self, lengths, flat) -> bool:
        """Whether they are ``mask.sum(-1)`` of the matrix that has become ``flat``."""
        return mask_selections.are_counts(lengths, flat)

    def record_check(self, call, leaves):
        """``call`` looks at ``leaves`` in each run; what comes later takes the first from there."""
        self.tracer.record_python(CHECK, call, leaves, leaves[:1], [])

    def call_whole(self, module, args, kwargs):
        return whole_modules.call(self, module, args, kwargs)

    @contextlib.contextmanager
    def recording(self):
        """The model runs inside."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.mode)
            stack.enter_context(_RecordByHand(self))
            for patch in (
                plain_sizes, detached_data, module_paths, conversions, constants, calls, settings,
                gradient_hooks, kept_gradients, torch_favours.done, placeholders.checked,
                row_lists.joined, checks.repeated,
            ):  # fmt: skip
                stack.enter_context(patch(self))
            stack.enter_context(mask_selections.allowed(self, replaced))
            stack.callback(self.tracer.stop)
            self.tracer.start()
            yield


class _Hidden:
    """A class and no generator: it is entered for every size that the model asks for."""

    __slots__ = ("tracer",)

    def __init__(self, tracer):
        self.tracer = tracer

    def __enter__(self):
        self.tracer.hide()

    def __exit__(self, *error):
        self.tracer.show()


class _RecordByHand(TorchDispatchMode):
    """Hides the tracer from the kernels of FakeTensor, which are Python code, and records the
    operators that it leaves out (convolutions)."""

    def __init__(self, session):
        super().__init__()
        self.session = session

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is ASK_DEVICE:  # which C++ does many times for each operator
            return args[0].device
        kwargs = kwargs or {}
        if not is_tracing():  # as in operators that the tracer has recorded
            outputs = func(*args, **kwargs)
            name = func._schema.name.partition("::")[2]
            self.session.looks.add(name, args, kwargs, outputs)
            return outputs
        tracer = self.session.tracer
        unrecorded = tracer.unrecorded() and func.namespace != "prim"
        if func is READ_NUMBER:
            found = known_numbers.number(self.session, args[0])
            if found is not None:
                # torch itself may read it, as in `x.uniform_(-bound, bound)`.
                tracer.record_number(args[0], found)
                return found
        with self.session.hidden():
            outputs = func(*args, **kwargs)
        if unrecorded and func is not READ_NUMBER:
            arguments = list(args)
            for argument in func._schema.arguments[len(args) :]:
                arguments.append(kwargs.get(argument.name, argument.default_value))
            results = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            tracer.record_operator(func._schema.name, arguments, results, True)
        return outputs


@contextlib.contextmanager
def substituted(model, fakes):
    """Each parameter and buffer of ``model`` replaced by ``fakes[id(tensor)]``, also in plain lists
    that modules keep (nn.LSTM does). Everything a module holds is as before afterwards."""

    def swap(value):
        if isinstance(value, torch.Tensor):
            return fakes.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(swap(item) for item in value)
        if type(value) is dict:
            return {key: swap(item) for key, item in value.items()}
        return value

    with module_attributes.kept(model):
        for module in model.modules():
            for registry in (module._parameters, module._buffers):
                for name, tensor in registry.items():
                    registry[name] = fakes.get(id(tensor), tensor)
            for name, value in list(vars(module).items()):
                if name not in module_attributes.REGISTRIES:
                    vars(module)[name] = swap(value)
        yield
