"""One trace of a model on FakeTensors: what Python must patch while torch's tracer records.

A FakeTensor has a shape, a dtype and a device, but no memory. All patches are of classes and
functions of torch, act only in the thread that traces, and are taken back afterwards.
"""

import contextlib
import os
import threading

import torch

import pyrannc
from pyrannc import _C
from pyrannc.capture import mask_selections, torch_favours
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_patches import (
    calls,
    constants,
    conversions,
    gradient_hooks,
    is_tracing,
    module_paths,
    plain_sizes,
    settings,
)
from pyrannc.capture.torch_private import (
    READ_NUMBER,
    FakeTensorMode,
    TorchDispatchMode,
)
from pyrannc.capture.values import checks, known_numbers, placeholders, row_lists, whole_modules
from pyrannc.errors import TraceError

TORCH_PATH = os.path.dirname(torch.__file__) + os.sep
# Files of torch that compute derivatives; vmap is in others.
_DERIVATIVES = (
    os.path.join(TORCH_PATH, "autograd", "__init__.py"),
    os.path.join(TORCH_PATH, "_functorch", "eager_transforms.py"),
)
_NORMALISATIONS = (os.path.join(TORCH_PATH, "nn", "modules", "batchnorm.py"),)
OWN_PATH = os.path.dirname(pyrannc.__file__) + os.sep


class Session:
    """One trace: torch's tracer, and the patches around it."""

    def __init__(self, mode: FakeTensorMode, paths, whole=frozenset()):
        self.tracer = _C.frontend.Tracer(TORCH_PATH, OWN_PATH)
        self.mode = mode
        self.paths = paths  # id of a module -> its path
        self.whole = whole  # paths of modules each call of which is one node
        self.thread = threading.get_ident()
        self.looks = checks.Looks()
        self.row_lists = row_lists.RowLists()
        self.failure = None  # (exception, path of the innermost module that raised it)

    def here(self) -> bool:
        """Whether the caller runs in the traced thread, under the tracer."""
        return threading.get_ident() == self.thread and is_tracing()

    def hidden(self):
        """A context inside which torch does not record."""
        return _Hidden(self.tracer)

    def call_whole(self, module, args, kwargs):
        return whole_modules.call(self, module, args, kwargs)

    @contextlib.contextmanager
    def recording(self):
        """The model runs inside."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.mode)
            stack.enter_context(_RecordByHand(self))
            for patch in (
                plain_sizes, module_paths, conversions, constants, calls, settings, gradient_hooks,
                torch_favours.done, placeholders.checked, row_lists.joined,
                checks.repeated,
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
        kwargs = kwargs or {}
        if not is_tracing():  # as in operators that the tracer has recorded
            outputs = func(*args, **kwargs)
            self.session.looks.add(func, args, kwargs, outputs)
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


class SizeUnknown(TraceError):
    """How large a result is depends on values; ``module``: where."""

    def __init__(self, text, module):
        super().__init__(text)
        self.module = module


def explain(session, error, doubt="") -> TraceError:
    """The error of a failed trace, with the user's line and the module. ``doubt``: what may have
    been a wrong guess."""
    _, module = session.failure or (None, "")
    where = where_of(error, module)
    name = type(error).__name__
    if name == "DataDependentOutputException" and _frame_in(error, _NORMALISATIONS):
        return TraceError(
            f"{where}: with momentum=None, as torch.optim.swa_utils.update_bn() sets it, a batch "
            "normalisation counts its calls, and a captured model does not know how many there "
            "were.\n  Set a momentum; or call update_bn() on a model that is not wrapped, into "
            "which you load state_dict() of this one."
        )
    if name in ("DataDependentOutputException", "DynamicOutputShapeException"):
        text = (
            f"{where}: the values of a tensor decide what runs next or how large a result is "
            f"({error}).\n  A captured model cannot depend on them: no .item(), no `if` on a "
            "tensor, no nonzero(); of what a mask selects only what is computed for each element "
            "by itself, sums and means. Use torch.where, or masking."
        )
        sized = name == "DynamicOutputShapeException" and "nonzero" in str(error)
        return SizeUnknown(text, module) if sized else TraceError(text)
    if _on_meta(error):
        return TraceError(
            f"{where}: an operator gets a tensor without values, on the meta device, that is "
            f"neither a parameter nor a buffer of the model nor an input ({error}).\n  A tensor "
            "that a module keeps as a plain attribute stays as it was built: register it as a "
            "buffer, which a reset_parameters() of the module computes, or build the model outside "
            "of torch.device('meta')."
        )
    if "two different devices" in str(error) or "at least two devices" in str(error):
        return TraceError(
            f"{where}: an operator gets tensors on two different devices, which eager PyTorch "
            f"would refuse, too ({error}).\n  Nothing is moved but what each rank holds of a model "
            "that is on the CPU: move inputs to the model's device before the call, and what the "
            "model keeps elsewhere in its forward()."
        )
    if "requires grad as a constant" in str(error):
        return TraceError(
            f"{where}: uses a tensor that requires a gradient but is not a parameter of the "
            "model.\n  Make it an nn.Parameter attribute of a module."
        )
    if _frame_in(error, _DERIVATIVES):
        return TraceError(
            f"{where}: computes derivatives (torch.autograd.grad, torch.func.grad or the like), "
            f"which cannot be captured here ({error}).\n  Write them as operators of the model; or "
            "wrap only the part of the model that does not need them, and compute them around it."
        )
    if ".numpy()" in str(error):
        return TraceError(
            f"{where}: hands the values of a tensor to numpy, which a captured graph cannot repeat."
            "\n  Compute with torch there; or compute outside of forward() and pass the result as "
            "an argument."
        )
    return TraceError(f"{where}: {name} while the model was traced: {error}{doubt}")


def place(error, module) -> None:
    """Puts them before the text of what our own code raised in the forward() of ``module``."""
    if _user_line(error) not in str(error):
        error.args = (f"{where_of(error, module)}: {error}",)


def where_of(error, module) -> str:
    line = _user_line(error)
    return (f"'{module}'" if module else "the model") + (f" ({line})" if line else "")


def _frame_in(error, files) -> bool:
    """Whether code of one of ``files`` was running when it failed."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(files):
            return True
        trace = trace.tb_next
    return False


def _on_meta(error) -> bool:
    text = str(error)
    return "meta" in text and ("two different devices" in text or "at least two devices" in text)


def _user_line(error) -> str:
    found = fallback = ""
    trace = error.__traceback__
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if not file.startswith((OWN_PATH, "<")):
            if file.startswith(TORCH_PATH):
                fallback = f"{file}:{line}"
            else:
                found = f"{file}:{line}"
        trace = trace.tb_next
    return found or fallback
