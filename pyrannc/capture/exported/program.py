"""The second front end: torch.export, non-strict, with the batch as a dynamic dimension.

What it would get silently wrong is refused: custom autograd functions, whose own backward it loses,
and reentrant checkpoints, which are such functions. A batch size that export specialises to is an
error of its own.
"""

import contextlib
import dataclasses
import types

import torch
from torch import nn

from pyrannc.capture import random_states, seen_by_hooks
from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.exported import graph
from pyrannc.capture.replaced import replaced
from pyrannc.capture.session import OWN_PATH, TORCH_PATH, place, where_of
from pyrannc.capture.torch_private import SingleLevelFunction
from pyrannc.errors import TraceError

# What torch makes of the backward of an operator that a script has registered; it is in the graph
# itself.
_OF_OPERATORS = "GeneratedBackwardFor_"


@dataclasses.dataclass(frozen=True)
class Exported:
    """A graph, and the tensors that it refers to, as a front end gives them.

    Attributes:
        graph: ``_C.ir.Graph``, generic in the batch size.
        objects: Its constants.
        outputs: The shape of what the model returns.
        changes: The attributes that forward() changes, by their paths.
        watching: Of hooks for backwards, which this front end does not take.
    """

    graph: object
    objects: list
    outputs: object
    changes: dict
    watching: object = None


class _OfTensors(nn.Module):
    """The model as a function from the tensors of a call to those of its result, which may be of
    classes that torch.export does not know."""

    def __init__(self, model, shape, hooks, seen):
        super().__init__()
        self.model = model
        self._shape, self._hooks = shape, hooks
        # Gets the shape of the result and what the model changes: export puts attributes back.
        self._seen = seen
        self.training = model.training

    def forward(self, *tensors):
        call = pytree.unflatten(self._shape, list(tensors))
        attributes = module_attributes.snapshot(self.model)
        before = [
            (module._buffers, name, buffer)
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
        ]
        result = seen_by_hooks.result_of(self.model, call["args"], call["kwargs"], self._hooks)
        for registry, name, buffer in before:
            if registry.get(name) is not buffer:  # which torch.export would forget
                buffer.copy_(registry[name])
                registry[name] = buffer
        found, shape = pytree.flatten(result)
        self._seen.shape = shape
        self._seen.changes = module_attributes.changed(attributes, self.model)
        return tuple(found)


def export(model, call, names, dims, states, rows, hooks=None) -> Exported:
    """Captures a call as :func:`pyrannc.capture.model.capture` does.

    Args:
        call: :class:`~pyrannc.capture.arguments.call.Call`.
        names, dims: Of its tensors: what they are called, which dimension holds the rows.
        states: ``(names, tensor, kind)`` of parameters and buffers.
        rows: At which it is traced.

    Raises:
        TraceError: torch.export refuses the model, or would lose something of it.
    """
    if any(tensor.is_meta for _, tensor, _ in states):
        raise TraceError(
            "torch.export captures models with values, and this one was built on the meta device: "
            "use Config(frontend='torchscript')"
        )
    if any(map(torch.is_autocast_enabled, {"cpu", *(each.device.type for each in call.tensors)})):
        raise TraceError(
            "torch.export leaves the casts of autocast out, under which this call is made: use "
            "Config(frontend='torchscript')"
        )
    inputs = [_with_rows(tensor, dim, rows) for tensor, dim in zip(call.tensors, dims, strict=True)]
    dynamic = tuple(None if dim is None else {dim: torch.export.Dim.DYNAMIC} for dim in dims)
    seen = types.SimpleNamespace()
    outer = _OfTensors(model, call.shape, hooks, seen)
    with module_attributes.kept(model), _refused_functions():
        try:
            with random_states.refused_outside_torch():
                program = torch.export.export(
                    outer, tuple(inputs), dynamic_shapes={"tensors": dynamic}, strict=False
                )
        except TraceError as error:
            place(error, _module_of(error, model))
            raise
        except Exception as error:
            where = where_of(error, _module_of(error, model))
            raise TraceError(f"{where}: {_refusal(error)}") from error
    text, objects = _written(program, model, inputs, names, dims, states)
    return Exported(
        graph.parsed(text),
        objects,
        _counts(seen.shape),
        seen.changes,
    )


def _written(program, model, inputs, names, dims, states):
    cloned = set()
    while True:
        writer = graph.Writer(type(model).__name__, (TORCH_PATH, OWN_PATH), cloned)
        outputs = _walked(writer, program, names, dims, states)
        if writer.written_constants <= cloned:
            return writer.finish(outputs), writer.objects
        cloned |= writer.written_constants


def _walked(writer, program, names, dims, states):
    kinds = torch.export.graph_signature.InputKind
    writer.reserve(each[0] for each, _, _ in states)
    specs = program.graph_signature.input_specs
    placeholders = program.graph.find_nodes(op="placeholder")
    fakes = {
        spec.arg.name: node.meta["val"] for spec, node in zip(specs, placeholders, strict=True)
    }
    of_user = [spec for spec in specs if spec.kind == kinds.USER_INPUT]
    values = {
        spec.arg.name: writer.add_input(name, fakes[spec.arg.name], dim)
        for spec, name, dim in zip(of_user, names, dims, strict=True)
    }
    state_at = {}
    for state_names, tensor, kind in states:
        fake = next(
            (fakes[s.arg.name] for s in specs if _own(s.target) in state_names), tensor.detach()
        )
        made = writer.add_state(state_names, _Described(fake, tensor), kind)
        state_at |= dict.fromkeys(state_names, made)
    given = []
    for spec in specs:
        if spec.kind == kinds.USER_INPUT:
            given.append(values[spec.arg.name])
        elif spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            given.append(state_at[_own(spec.target)])
        elif spec.kind == kinds.CONSTANT_TENSOR:
            constant = program.constants[spec.target]
            given.append(writer.add_constant(_own(spec.target), constant))
        else:
            raise TraceError(f"torch.export lifted '{spec.target}', which a graph cannot hold")
    results = graph.Walk(program.graph_module, writer).run(*given)
    kinds = torch.export.graph_signature.OutputKind
    outputs = []
    for value, spec in zip(results, program.graph_signature.output_specs, strict=True):
        if spec.kind == kinds.USER_OUTPUT:
            outputs.append(value)
        elif spec.kind == kinds.BUFFER_MUTATION:
            state = state_at[_own(spec.target)]
            fake = next(fakes[s.arg.name] for s in specs if s.target == spec.target)
            writer.call(torch.ops.aten.copy_.default, (state, value), {}, fake)
        else:
            raise TraceError(f"torch.export returns '{spec.target}', which a graph cannot hold")
    return outputs


class _Described:
    """What a fake tensor says, with the ``requires_grad`` of the model's."""

    def __init__(self, fake, tensor):
        self.shape, self.dtype, self.requires_grad = (
            tensor.shape,
            tensor.dtype,
            tensor.requires_grad,
        )
        self.untyped_storage = fake.untyped_storage


def _own(target):
    return None if target is None else target.removeprefix("model.")


def _with_rows(tensor, dim, rows):
    """The tensor of a call with ``rows`` rows, made of its own."""
    if dim is None:
        return tensor.detach()
    index = torch.arange(rows, device=tensor.device) % max(tensor.shape[dim], 1)
    if tensor.shape[dim] == 0:
        shape = [rows if d == dim else size for d, size in enumerate(tensor.shape)]
        return tensor.new_zeros(shape)
    return tensor.detach().index_select(dim, index)


def _counts(shape):
    """The shape of the result with a Count for each integer that depends on the rows."""
    writer = graph.Writer("", ())
    if isinstance(shape, pytree.Constant) and isinstance(shape.value, torch.SymInt):
        number = writer.affine(shape.value)
        if isinstance(number, graph.Affine):
            return pytree.Count(*number)
        return pytree.Constant(number)
    if not isinstance(shape, pytree.Container):
        return shape
    children = tuple(_counts(child) for child in shape.children)
    return dataclasses.replace(shape, children=children)


@contextlib.contextmanager
def _refused_functions():
    def apply(cls, *args, **kwargs):
        if cls.__name__.startswith(_OF_OPERATORS):
            return super(SingleLevelFunction, cls).apply(*args, **kwargs)
        raise TraceError(
            f"torch.export would lose the backward of the autograd function {cls.__qualname__} "
            "(reentrant checkpoints are one, too).\n  Use Config(frontend='torchscript'), or "
            "checkpoint(use_reentrant=False)."
        )

    with replaced(SingleLevelFunction, apply=classmethod(apply)):
        yield


def _module_of(error, model) -> str:
    """The innermost module of ``model`` whose code was running."""
    paths = {id(module): path for path, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        found = paths.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found


def _refusal(error) -> str:
    """torch.export's errors are pages; the first lines say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:3])[:500] or type(error).__name__
    return f"torch.export refuses the model: {type(error).__name__}: {text}"
