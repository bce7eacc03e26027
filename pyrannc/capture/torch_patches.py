"""What is changed in torch's Python side while a model is traced."""

import contextlib
import dataclasses
import functools
import inspect
import threading
import types

import torch

from pyrannc.capture import mask_selections, torch_private
from pyrannc.capture.arguments import pytree
from pyrannc.capture.explained import OWN_PATH, TORCH_PATH
from pyrannc.capture.fake_mode import FakeMode
from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_private import FakeTensor, disable_current_modes
from pyrannc.capture.values import autograd_functions
from pyrannc.errors import TraceError

# Under torch's tracer sizes are tensors, and arithmetic on them becomes part of the trace. Here
# they are plain numbers: traces at several batch sizes tell which of them depend on the batch.
_PLAIN_METHODS = ("size", "numel", "nelement", "stride", "storage_offset", "dim", "element_size")
_PLAIN_PROPERTIES = ("shape", "ndim", "nbytes", "itemsize")


def is_tracing() -> bool:
    """Whether torch records what runs now."""
    return torch_private.is_tracing()


@dataclasses.dataclass(eq=False)
class PythonCall:
    """A call of a custom ``torch.autograd.Function``, as a function of its tensors."""

    function: type
    arguments: object  # pytree shape

    def __call__(self, *tensors):
        outputs = self.function.apply(*pytree.unflatten(self.arguments, tensors))
        found, _ = pytree.flatten(outputs)
        return found[0] if len(found) == 1 else tuple(found)

    def __eq__(self, other):
        return (
            isinstance(other, PythonCall)
            and self.function is other.function
            and self.arguments == other.arguments
        )

    __hash__ = None


def plain_sizes(session):
    def hide(getter):
        @functools.wraps(getter)
        def plain(*args, **kwargs):
            if not session.here():
                return getter(*args, **kwargs)
            with session.hidden():
                return getter(*args, **kwargs)

        return plain

    patches = {name: hide(getattr(torch.Tensor, name)) for name in _PLAIN_METHODS}
    for name in _PLAIN_PROPERTIES:
        patches[name] = property(hide(getattr(torch.Tensor, name).__get__))
    patches["__len__"] = hide(torch.Tensor.__len__)
    return replaced(FakeTensor, **patches)


def detached_data(session):
    """`x.data` is not recorded; detach() is the same tensor without its history. What is put there
    is written into `x`, which is the same as long as nobody uses what was there before."""
    given, overwritten = [], []

    def get(tensor):
        if not session.here():
            return torch.Tensor.data.__get__(tensor)
        detached = tensor.detach()
        given.append((tensor, detached))
        return detached

    def put(tensor, value):
        if not session.here():
            return torch.Tensor.data.__set__(tensor, value)
        if (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
            raise TraceError(
                f"forward() puts a tensor of {value.dtype}, shape {list(value.shape)}, into the "
                f".data of one of {tensor.dtype}, shape {list(tensor.shape)}: dtype and shape of a "
                "tensor cannot change in a captured model."
            )
        before = [detached for owner, detached in given if owner is tensor]
        if any(value is each for each in before) and not any(value is each for each in overwritten):
            return  # what `x.data *= 2` puts back is `x` already
        overwritten.extend(before)
        with torch.no_grad():
            tensor.detach().copy_(value)

    def set_(tensor, *args, **kwargs):
        if not session.here():
            return torch.Tensor.set_(tensor, *args, **kwargs)
        raise TraceError(
            "forward() gives a tensor the memory of another one (set_()), which a captured model "
            "cannot do.\n  Write into it instead: tensor.copy_(other), under torch.no_grad()."
        )

    data = property(get, put)
    patches = contextlib.ExitStack()
    patches.enter_context(replaced(FakeTensor, data=data, set_=set_))
    patches.enter_context(replaced(FakeMode, overwritten=overwritten))
    return patches


def kept_gradients(session):
    """`p.grad` in forward(): what the step before has left there, which no FakeTensor has."""

    def get(tensor):
        asks = inspect.currentframe().f_back.f_code.co_filename
        if session.here() and tensor.is_leaf and not asks.startswith((TORCH_PATH, OWN_PATH)):
            raise TraceError(
                "forward() reads the gradient of a tensor (.grad), which is that of an earlier "
                "backward: a captured model has no gradients at hand.\n  Take what you need of it "
                "in the training loop after backward(), and pass it as an argument, or keep it in "
                "a buffer."
            )
        return torch.Tensor.grad.__get__(tensor)

    return replaced(
        FakeTensor, grad=property(get, torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__)
    )


def module_paths(session):
    original = torch.nn.Module.__call__

    def call(module, *args, **kwargs):
        path = session.paths.get(id(module)) if session.here() else None
        if path is None:
            return original(module, *args, **kwargs)
        session.tracer.enter_module(path)
        try:
            if path in session.whole:
                return session.call_whole(module, args, kwargs)
            return original(module, *args, **kwargs)
        except Exception as error:
            if session.failure is None or session.failure[0] is not error:
                session.failure = (error, path)
            raise
        finally:
            session.tracer.leave_module()

    return replaced(torch.nn.Module, __call__=call)


def conversions(session):
    """``module.to(dtype)`` and its like in forward(): harmless where they change nothing."""
    original = torch.nn.Module._apply

    def apply(module, fn, recurse=True):  # named as torch's
        if not session.here():
            return original(module, fn, recurse)
        for child in module.children() if recurse else ():
            child._apply(fn)
        for registry in (module._parameters, module._buffers):
            for name, tensor in registry.items():
                if tensor is None:
                    continue
                with session.hidden():
                    converted = fn(tensor)
                if (converted.dtype, converted.device) == (tensor.dtype, tensor.device):
                    continue
                path = session.paths.get(id(module), type(module).__name__)
                raise TraceError(
                    f"forward() converts '{path + '.' + name if path else name}' from "
                    f"{tensor.dtype} on {tensor.device} to {converted.dtype} on {converted.device} "
                    "(to(), float(), cuda() or the like of a module).\n  Convert the module before "
                    "you wrap the model, or the tensor where it is used."
                )
        return module

    return replaced(torch.nn.Module, _apply=apply)


def gradient_hooks(session):
    """``h.register_hook(...)`` in forward(): the hook would never be called, and what it does to a
    gradient would be missing."""

    def register_hook(tensor, hook):
        if not session.here():
            return torch.Tensor.register_hook(tensor, hook)
        raise TraceError(
            "forward() registers a hook on the gradient of a tensor (register_hook()), which a "
            "captured model does not call.\n  Do what it does in the backward of a "
            "torch.autograd.Function that passes the tensor on; a hook of a parameter is "
            "registered outside of forward()."
        )

    return replaced(FakeTensor, register_hook=register_hook)


@contextlib.contextmanager
def constants(session):
    """Tensors made of Python numbers: the tracer sees only a FakeTensor without values."""

    def recorded(original):
        @functools.wraps(original)
        def make(*args, **kwargs):
            if not session.here() or not args or pytree.flatten(args[0])[0]:
                return original(*args, **kwargs)
            data, *args = args
            with session.hidden(), disable_current_modes():
                real = original(data, *args, **kwargs)
                requires_grad = real.requires_grad
                real = real.detach()
            with session.hidden():
                converter = session.mode.fake_tensor_converter
                fake = converter.from_real_tensor(session.mode, real, make_constant=True)
            if isinstance(data, int) and not isinstance(data, bool):
                # A number that may come from a size: as an argument it may depend on the batch.
                arguments = [[], data, real.dtype, None, real.device, None]
                session.tracer.record_operator("aten::full", arguments, [fake], False)
            else:
                session.tracer.record_constant(fake, real)
            return fake.requires_grad_() if requires_grad else fake

        return make

    def new_tensor(tensor, data, *, dtype=None, device=None, requires_grad=False):
        if not session.here() or isinstance(data, torch.Tensor):
            return torch.Tensor.new_tensor(
                tensor, data, dtype=dtype, device=device, requires_grad=requires_grad
            )
        return torch.tensor(
            data, dtype=dtype or tensor.dtype, device=device or tensor.device,
            requires_grad=requires_grad,
        )  # fmt: skip

    divide = torch.div

    def div(input, other, *args, **kwargs):
        """Of two sizes: what is made with it is a size."""
        if not session.here() or not (type(input) is int and type(other) is int):
            return divide(input, other, *args, **kwargs)
        with session.hidden(), disable_current_modes():
            return divide(input, other, *args, **kwargs).item()

    makers = {name: recorded(getattr(torch, name)) for name in ("tensor", "as_tensor", "asarray")}
    with replaced(torch, **makers, div=div), replaced(FakeTensor, new_tensor=new_tensor):
        yield


@contextlib.contextmanager
def calls(session):
    """Custom autograd functions and scripted functions: one node each."""

    def written_in(tensors):
        versions = [tensor._version for tensor in tensors]
        return lambda: [
            tensor
            for tensor, version in zip(tensors, versions, strict=True)
            if tensor._version != version
        ]

    def call(cls, apply, args):
        tensors, shape = pytree.flatten(args)
        mask_selections.refuse_in(shape)
        refuse_hidden_parameters(cls, args, {id(tensor) for tensor in tensors})
        written = written_in(tensors)
        with session.hidden():
            outputs = apply(*args)
        results, _ = pytree.flatten(outputs)
        session.tracer.record_python(
            cls.__name__, PythonCall(cls, shape), tensors, results, written()
        )
        return outputs

    def call_kept(cls, _apply, forward, arguments, _grad_enabled):
        """torch's tracer has recorded the call already, but not what it calls."""
        args = arguments if autograd_functions.has_setup(cls) else arguments[1:]
        tensors, shape = pytree.flatten(args)
        mask_selections.refuse_in(shape)
        refuse_hidden_parameters(cls, args, {id(tensor) for tensor in tensors})
        if len(tensors) != sum(isinstance(each, torch.Tensor) for each in args):
            raise TraceError(
                f"the autograd function {cls.__qualname__} is called by an apply() that was looked "
                "up before the call, with a list of tensors, which torch's tracer does not record."
                f"\n  Call {cls.__name__}.apply(...) where it is used, or pass the tensors one by "
                "one."
            )
        written = written_in(tensors)
        with session.hidden():
            outputs = forward(*arguments)
        results, _ = pytree.flatten(outputs)
        session.tracer.describe_python(cls.__name__, PythonCall(cls, shape), results, written())
        return outputs

    scripted = torch.jit.ScriptFunction
    original = scripted.__call__

    def call_scripted(function, *args, **kwargs):
        if not session.here():
            return original(function, *args, **kwargs)
        arguments = list(args)
        for argument in function.schema.arguments[len(args) :]:
            arguments.append(kwargs.get(argument.name, argument.default_value))
        tensors, _ = pytree.flatten(arguments)
        written = written_in(tensors)
        with session.hidden():
            outputs = original(function, *args, **kwargs)
        results, _ = pytree.flatten(outputs)
        session.tracer.record_scripted(function.name, function, arguments, results, written())
        return outputs

    with (
        autograd_functions.caught(session, call, call_kept),
        replaced(scripted, __call__=call_scripted),
    ):
        yield


def refuse_hidden_parameters(function, arguments, given):
    """Refuses a custom function that is handed modules: what its backward adds to the gradients of
    their parameters goes past autograd, and would be this rank's rows' alone."""
    for module in _modules_in(arguments):
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in given:
                raise TraceError(
                    f"the autograd function {function.__qualname__} is handed a "
                    f"{type(module).__name__} instead of tensors: the gradient of its parameter "
                    f"'{name}' would be made inside of the function's backward, past autograd, and "
                    "not be summed over the ranks.\n  Hand over the parameters as tensors, or call "
                    "the module outside of the function; torch.utils.checkpoint is understood."
                )


def _modules_in(value, inside=()):
    """The modules among arguments, in lists of them, and in what functions among them hold."""
    if isinstance(value, torch.nn.Module):
        yield value
        return
    if isinstance(value, list | tuple):
        held = value
    elif isinstance(value, dict):
        held = value.values()
    elif isinstance(value, functools.partial):
        held = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        held = [value.__self__]
    elif isinstance(value, types.FunctionType):
        cells = value.__closure__ or ()
        held = [cell.cell_contents for cell in cells if cell != types.CellType()]  # not empty
    else:
        return
    if not any(value is each for each in inside):  # a function may hold itself
        for each in held:
            yield from _modules_in(each, (*inside, value))


@contextlib.contextmanager
def settings(session):
    """Python code does not see the tracer (modules would hand out sizes as tensors), and no cast of
    an earlier trace is reused."""

    def unless_here(answer, original):
        return lambda: answer if threading.get_ident() == session.thread else original()

    native = torch_private.NATIVE
    torch.clear_autocast_cache()
    try:
        with replaced(
            native,
            _get_tracing_state=unless_here(None, native._get_tracing_state),
            _is_tracing=unless_here(False, torch_private.is_tracing),
        ):
            yield
    finally:
        torch.clear_autocast_cache()
