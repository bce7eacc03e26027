"""Errors of a capture that has failed, with the user's line and the module."""

import linecache
import os
import re

import torch

import pyrannc
from pyrannc.capture.torch_private import FakeTensor
from pyrannc.errors import TraceError, shown_as

TORCH_PATH = os.path.dirname(torch.__file__) + os.sep
OWN_PATH = os.path.dirname(pyrannc.__file__) + os.sep
# Files of torch that compute derivatives; vmap is in others.
_DERIVATIVES = (
    os.path.join(TORCH_PATH, "autograd", "__init__.py"),
    os.path.join(TORCH_PATH, "_functorch", "eager_transforms.py"),
)
_NORMALISATIONS = (os.path.join(TORCH_PATH, "nn", "modules", "batchnorm.py"),)
# Of FakeTensors under torch's tracer, and of torch.export.
_OF_VALUES = (
    "DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode",
)  # fmt: skip
# Of operators that get tensors of layers which the capture does not know, beside its own.
_OF_OUTSIDERS = (
    "its data is not allocated yet", "requires grad as a constant", "convert all Tensors to Fake",
)  # fmt: skip


@shown_as(TraceError)
class OfValues(TraceError):
    """The values of a tensor decide what runs next or how large a result is."""


@shown_as(TraceError)
class SizeUnknown(OfValues):
    """How large a result is depends on values; ``module``: where."""

    def __init__(self, text, module):
        super().__init__(text)
        self.module = module


def explain(error, module, otherwise, model) -> TraceError:
    """The error of a failed capture, with the user's line and the module.

    Args:
        model: The one that is captured.
        module: The path of the innermost module that raised it.
        otherwise: The text where the cause is none of those that are known.
    """
    where = where_of(error, module)
    name = type(error).__name__
    if name in _OF_VALUES and _frame_in(error, _NORMALISATIONS):
        return TraceError(
            f"{where}: with momentum=None, as torch.optim.swa_utils.update_bn() sets it, a batch "
            "normalisation counts its calls, and a captured model does not know how many there "
            "were.\n  Set a momentum; or call update_bn() on a model that is not wrapped, into "
            "which you load state_dict() of this one."
        )
    if name in _OF_VALUES and "_pack_padded_sequence" in str(error):
        return TraceError(
            f"{where}: pack_padded_sequence() makes a tensor whose size depends on the lengths, "
            "which no captured model has.\n  Run the layer on the padded batch: of one direction "
            "`h, _ = lstm(x)` is the same before the end of each row, and its last state is "
            "`h[torch.arange(len(h)), lengths - 1]`; mask what comes after. For both directions "
            "take two layers, one of which runs on rows that are turned round by gather()."
        )
    if name in _OF_VALUES or "LoggedNumber" in str(error):
        found = _first_line(error).replace("LoggedNumber", "the number of a tensor")
        text = (
            f"{where}: the values of a tensor decide what runs next or how large a result is "
            f"({found}).\n  A captured model cannot depend on them: no .item(), no "
            "`if` on a tensor, no nonzero(); of what a mask selects only what is computed for each "
            "element by itself, sums and means. Use torch.where, or masking. For a number in a log "
            "keep the tensor, `self.last = x.mean().detach()`, and read `model.last.item()` after "
            "the call."
        )
        if _reads_random(error):
            text += (
                "\n  Layers that are dropped at random (LayerDrop) are left out by a factor: `keep "
                "= (torch.rand([]) >= self.layerdrop).to(x.dtype); x = x + keep * (layer(x) - x)`."
            )
        sized = name == "DynamicOutputShapeException" and "nonzero" in str(error)
        return SizeUnknown(text, module) if sized else OfValues(text)
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
    outside = any(each in str(error) for each in _OF_OUTSIDERS)
    if outside and (found := next(_outsiders(model), None)):
        return TraceError(f"{where}: {_uses(found[0])}")
    if "requires grad as a constant" in str(error):
        return TraceError(f"{where}: {_UNKNOWN}")
    if _frame_in(error, _DERIVATIVES):
        return TraceError(
            f"{where}: computes derivatives (torch.autograd.grad, torch.func.grad or the like), "
            f"which cannot be captured here ({_first_line(error)}).\n  First derivatives by an "
            "input can be taken around the model: `y = model(x.requires_grad_()); g, = "
            "torch.autograd.grad(y.sum(), x)`. What trains through them (create_graph=True) is "
            "written as operators of the model, as `(1 - torch.tanh(h) ** 2) * weight`; or wrap "
            "only the part of the model that does not need them."
        )
    if _OF_OUTSIDERS[0] in str(error):
        return TraceError(
            f"{where}: {_UNKNOWN} (Or an operator of a library in C++ reads a tensor's memory, of "
            "which there is none while a model is traced: give it a fake by torch's "
            "register_fake().)"
        )
    if "dynamo-optimized function" in str(error):
        return TraceError(
            f"{where}: calls a function that torch.compile has made, into which torch's tracer "
            "cannot look.\n  Take torch.compile away there, as RaNNC runs operators by itself; or "
            'set Config(frontend="export"), which takes such functions as what they were made of.'
        )
    if ".numpy()" in str(error):
        return TraceError(
            f"{where}: hands the values of a tensor to numpy, which a captured graph cannot repeat."
            "\n  Compute with torch there; or compute outside of forward() and pass the result as "
            "an argument."
        )
    return TraceError(f"{where}: {otherwise}")


def refuse_outsiders(model, constants, read) -> None:
    """torch.export makes constants of trained tensors that the model does not know, and their
    gradients would be lost. ``read``: the tensors that the model's forward() has used."""
    known = set(map(id, model.parameters()))
    trained = {
        _memory(each): each
        for each in read
        if each.requires_grad and each.is_leaf and id(each) not in known
    }
    for constant in constants:
        if (memory := _memory(constant)) and memory in trained:
            found = (path for path, each in _outsiders(model) if each is trained[memory])
            path = next(found, None)
            raise TraceError(f"the model: {_uses(path) if path else _UNKNOWN}")


def _memory(tensor):
    """0: it has none."""
    if isinstance(tensor, FakeTensor) or not isinstance(tensor, torch.Tensor):
        return 0
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


_UNKNOWN = (
    "uses a tensor that requires a gradient but is not a parameter of the model.\n  Make it an "
    "nn.Parameter attribute of a module."
)


def _uses(path):
    return (
        f"uses `{path}`, which is no parameter of the model, because its layer is in a plain "
        "Python list or dict: no optimizer, checkpoint or .to(device) of the model knows it, "
        "either.\n  Put such layers into an nn.ModuleList or nn.ModuleDict."
    )


def _outsiders(model):
    """Parameters of layers that a module keeps in a plain list or dict, with their paths."""
    known = set(map(id, model.parameters()))
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, layer in items:
                if not isinstance(layer, torch.nn.Module):
                    continue
                for parameter, tensor in layer.named_parameters():
                    if id(tensor) not in known:
                        yield ".".join(filter(None, [path, f"{name}[{key!r}]", parameter])), tensor


def place(error, module) -> None:
    """Puts them before the text of what our own code raised in the forward() of ``module``."""
    if _user_line(error) not in str(error):
        error.args = (f"{where_of(error, module)}: {error}",)


def where_of(error, module) -> str:
    line = _user_line(error)
    return (f"'{module}'" if module else "the model") + (f" ({line})" if line else "")


def is_own(file) -> bool:
    """Whether it is one of this library."""
    return file.startswith((OWN_PATH, "<"))


def _first_line(error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).strip()


def _frame_in(error, files) -> bool:
    """Whether code of one of ``files`` was running when it failed."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(files):
            return True
        trace = trace.tb_next
    return False


def _reads_random(error) -> bool:
    """Whether the user's line draws a random number, or asks for a rate at which to drop."""
    file, _, line = _user_line(error).rpartition(":")
    text = linecache.getline(file, int(line)) if line else ""
    return re.search(r"rand|[dD]rop", text) is not None


def _on_meta(error) -> bool:
    text = str(error)
    told = ("two different devices", "at least two devices", "is not on the expected device")
    return "meta" in text and any(each in text for each in told)


def _user_line(error) -> str:
    found = fallback = ""
    trace = error.__traceback__
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if not is_own(file):
            if file.startswith(TORCH_PATH):
                fallback = f"{file}:{line}"
            else:
                found = f"{file}:{line}"
        trace = trace.tb_next
    return found or fallback
