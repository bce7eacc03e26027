"""Private names of torch that capture, self-check and profiling rely on; other files name none.

All were seen in torch 2.11 to 2.15. Beside each stands what breaks without it; a test looks
for all of them in each supported release.
"""

import dataclasses
import importlib
import inspect
import sys

import torch
from torch import nn

# Tensors with shapes and without memory, in which models are traced; also the converter that makes
# one of a real tensor (`fake_tensor_converter.from_real_tensor(make_constant=True)`), and the
# exceptions by which FakeTensors refuse what depends on data. Without them nothing can be captured.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

# The class that all custom autograd functions inherit apply() from, and the one of their contexts.
# Without them the functions are traced operator by operator, and their own backward is lost.
from torch.autograd.function import BackwardCFunction as BackwardContext
from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction
from torch.distributions import Distribution
from torch.nn.modules import transformer

# Every operator that runs inside passes through TorchDispatchMode. Without it convolutions are
# missing in graphs. The other turns such modes off, so that constants of forward() have values.
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

__all__ = [
    "BackwardContext",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "SingleLevelFunction",
    "TorchDispatchMode",
    "disable_current_modes",
]

#: Whether Function.apply is a method of C, as from 2.14 on. Without it custom functions are lost.
apply_is_native = not inspect.ismethod(torch.autograd.Function.apply)
#: ``bind_default_args(forward, args, kwargs)``: positional arguments with defaults, as the C method
#: binds them. Without it tensors among keyword arguments are lost; older releases bind themselves.
bind_default_args = getattr(torch.autograd.function, "_bind_default_args", None)
#: Whether the caller runs inside of torch.func.grad, vmap or their kin, which take custom functions
#: apart. Without it such calls are recorded as one node.
transforms_are_active = torch._C._are_functorch_transforms_active


def tensors_read(mode) -> list:
    """The real tensors of which ``mode`` has made fake ones. Without it a parameter that no module
    registers is a constant of what torch.export returns, and is never trained."""
    known = mode.fake_tensor_converter.meta_converter.describer.lookup_tensor
    return [each for each in known if not isinstance(each, FakeTensor)]


def set_grad_unrecorded(enabled: bool) -> None:
    """Sets the grad mode without a node in the graph that torch.export records. Without it all that
    follows a kept apply() has no gradient."""
    with torch._C.DisableTorchFunction():
        torch.set_grad_enabled(enabled)


#: Holds `_is_tracing` and `_get_tracing_state`, by which torch's Python code learns that it is
#: traced. Where they cannot be replaced, modules hand out sizes as tensors.
NATIVE = torch._C
#: Asked here, whatever stands in its place for others. Without it no call is known to be traced.
is_tracing = torch._C._is_tracing
#: Which value of the trace a tensor is. Without it two equal masks that select cannot be told to be
#: equal, so what they select cannot be brought together, and no number that a model reads is known.
value_in_trace = torch._C._get_value_trace
#: The operator of a mixture of experts. Without it there is nothing to let pass (torch_favours).
GROUPED_MM = torch.ops.aten._grouped_mm.default
#: The operator of a CTC loss whose lengths are tensors. Without it no such loss can be traced.
CTC_LOSS = torch.ops.aten._ctc_loss.Tensor
#: The operator behind tensor.item(). Without it no number that a model reads is known.
READ_NUMBER = torch.ops.aten._local_scalar_dense.default
#: Where a tensor without data lies, which C++ asks. Without it a capture takes a tenth longer.
ASK_DEVICE = torch.ops.prim.device.default
#: What looks whether all elements of a tensor are true, only to raise an error where one is not.
#: Without it models that check their input so cannot be traced.
CHECK_OF_VALUES = "_check_tensor_all_with"
#: Where FakeTensors log a stack, and torch.export all that it has seen, for mistakes that the
#: caller then reports. Without them both show.
LOGGERS = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.proxy_tensor",
    "torch.export",
    "torch.export._trace",  # torch makes it in the first export, too late for a filter
)


def compiled_module_type():
    """What torch.compile makes of a module; None where nothing has been compiled, as importing the
    compiler takes seconds. Without it a compiled model is refused later, with a worse message."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler and compiler.OptimizedModule


def not_compiled(module):
    """What torch.compile has made ``module`` of, or itself. Without it compiled models are
    refused."""
    compiled = compiled_module_type()
    while compiled is not None and isinstance(module, compiled):
        module = module._orig_mod
    return module


def has_compiled_forward(module) -> bool:
    """Whether torch.compile was called for ``module.forward``, and the result put there. Without it
    such a model cannot be traced."""
    forward = vars(module).get("forward")
    if not hasattr(forward, "_torchdynamo_orig_callable"):
        return False
    return getattr(inspect.unwrap(forward), "__func__", None) is type(module).forward


#: Of autocast, by type of device. Without them no cast is seen by torch.export.
_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU"}


def autocast_has(operator, device: str) -> bool:
    """Whether autocast on a type of device has the operator on one of its lists."""
    key = _AUTOCAST_KEYS.get(device, "AutocastPrivateUse1")
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def is_made_of_others(operator) -> bool:
    """Whether torch computes it, and its gradient, by other operators. Without it autocast may
    reach into one unseen."""
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def exporting():
    """The file of torch.export that makes a FakeTensorMode for it; not imported before, as that
    takes seconds. Without it export needs the values of parameters."""
    return importlib.import_module("torch._export.non_strict_utils")


def export_trace():
    """The file of torch.export that prints all of a model that it has refused. Without it pages
    stand before the error."""
    return importlib.import_module("torch.export._trace")


def forbid_sizes_of_values(shape_env) -> None:
    """``nonzero()`` and its kin are errors, as without torch.export. Without it no module that
    calls them can be exported."""
    settings = dataclasses.replace(shape_env.settings, allow_dynamic_output_shape_ops=False)
    shape_env.settings = settings


#: The innermost hooks on what autograd saves, or None; and what takes them away and puts them back.
#: Without them checkpoint() around a wrapped model runs its first call once more, inside of itself.
top_hooks_on_saved = torch._C._autograd._top_saved_tensors_default_hooks
pop_hooks_on_saved = torch._C._autograd._pop_saved_tensors_default_hooks
push_hooks_on_saved = torch._C._autograd._push_saved_tensors_default_hooks

#: The innermost of torch.func.grad, vmap and their kin in which the caller runs, or None. Without
#: it their tensors, which have no memory, fail deep inside of a call.
innermost_transform = torch._C._functorch.peek_interpreter_stack


#: The module of functions that nn.RNN and its kin call. Without it those with dropout between their
#: layers cannot be captured on CUDA.
RECURRENT = torch._VF


def computes_tangents() -> bool:
    """Whether the caller runs inside of forward-mode autograd, whose tangents are lost without
    this."""
    return torch.autograd.forward_ad._current_level >= 0


#: Private attributes by name: an object that has each, and what breaks without it.
ATTRIBUTES = {
    "_apply": (nn.Module, "to(), float() and the like of a module in forward() are not noticed"),
    "_backward_hooks": (torch.Tensor, "the self-check calls the user's hooks"),
    "_base": (torch.Tensor, "a view of a buffer that forward() replaces is not copied"),
    "_buffers": (nn.Module(), "no model can be captured"),
    "_call_impl": (nn.Module, "torch.compile around a wrapped model compiles this library"),
    "_cdata": (torch.UntypedStorage, "bytes kept for the backward are estimated, not measured"),
    "_compiled_call_impl": (nn.Module, "module.compile() is not undone, or not refused"),
    "_detect_is_causal_mask": (transformer, "nothing, if nn.Transformer does not look into masks"),
    "_forward_hooks": (nn.Module(), "attributes that hooks read are not compared before a call"),
    "_forward_pre_hooks": (nn.Module(), "the same of hooks before forward()"),
    "_get_tracing_state": (torch._C, "modules hand out sizes as tensors while they are traced"),
    "_is_tracing": (torch._C, "modules hand out sizes as tensors while they are traced"),
    "_parameters": (nn.Module(), "no model can be captured"),
    "_schema": (GROUPED_MM, "convolutions are missing in graphs"),
    "_validate_args": (Distribution, "nothing, if distributions do not look at their arguments"),
    "_version": (torch.Tensor, "writes of custom and scripted functions are missed"),
}
