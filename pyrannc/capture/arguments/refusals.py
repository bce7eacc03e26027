"""Models and arguments that cannot be captured, told by their kind before anything is traced."""

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from pyrannc.capture import torch_private
from pyrannc.errors import TraceError


def refuse_model(model) -> None:
    """Raises TraceError that names a module which cannot be traced, and what to use instead."""
    for path, module in model.named_modules():
        if reason := _reason(module):
            raise TraceError(f"'{path}' {reason}" if path else f"the model {reason}")


def refuse_arguments(tensors, paths) -> None:
    """Raises TraceError that names a tensor without rows and columns."""
    for index, tensor in enumerate(tensors):
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else "sparse"
            raise TraceError(
                f"{paths()[index]} is a {kind} tensor, which cannot be cut into rows; "
                f"{'pad it and pass a mask' if kind == 'nested' else 'pass it dense'}"
            )


def refuse_transforms() -> None:
    """Raises TraceError inside of transformed functions, whose tensors are none that can be sent,
    and where tangents are computed or operators recorded, which would be lost."""
    if torch.jit.is_tracing() or torch.compiler.is_exporting():
        raise TraceError(
            "a RaNNCModule is called inside torch.jit.trace(), torch.export() or the like, as "
            "add_graph() of TensorBoard does, and the operators of a pipeline cannot be "
            "recorded.\n  `with model.summon(): torch.jit.trace(model.module, ...)`, on all ranks, "
            "records the model."
        )
    inside = torch_private.innermost_transform()
    if inside is None and not torch_private.computes_tangents():
        return
    raise TraceError(
        "a RaNNCModule is called inside "
        f"{'torch.func.grad, vmap, jvp or the like' if inside else 'forward-mode autograd'}, which "
        "would have to go through a pipeline of several ranks.\n  Use backward(), or these "
        "functions inside forward(); in model.summon() a rank can call the unwrapped model."
    )


def _reason(module) -> str:
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "is a scripted or traced module (torch.jit), whose parameters torch hides; use the "
            "module that it was made of. Scripted functions may stay"
        )
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return (
            f"is a {name} that has not run yet, so its parameters have no shape; call the model "
            "once with a batch before you wrap it"
        )
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return (
            f"is a {name}, which spreads the batch itself; use what is in it, its attribute "
            "'module'"
        )
    if isinstance(module, nn.SyncBatchNorm) and module.training:
        return (
            "is a SyncBatchNorm, which would wait for ranks of torch.distributed inside the graph; "
            "leave convert_sync_batchnorm() out, and set Config(sync_batch_norm=True) for the "
            "statistics of the whole batch"
        )
    if _is_compiled(module):
        return (
            "is compiled by torch.compile, whose code cannot be traced; use the module that it was "
            "made of, its attribute '_orig_mod'"
        )
    if module._compiled_call_impl is not None:
        return f"is compiled: {name}.compile() was called. Leave that out"
    return ""


def _is_compiled(module) -> bool:
    compiled = torch_private.compiled_module_type()
    return compiled is not None and isinstance(module, compiled)
