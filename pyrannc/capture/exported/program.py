"""The second front end: torch.export, non-strict, with the batch as a dynamic dimension.

What it would get silently wrong is done beside it, or refused: a custom autograd function, whose
own backward it loses, becomes one operator; casts of autocast, which it leaves out, are added; a
batch size that it specialises to is an error.
"""

import collections
import dataclasses
import types
import warnings

import torch
from torch import nn

from pyrannc import _C, log
from pyrannc.capture import (
    mask_selections,
    random_states,
    seen_by_hooks,
    torch_private,
)
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.batch_dims import doubt
from pyrannc.capture.arguments.call import Like
from pyrannc.capture.attributes import module_attributes, second_calls
from pyrannc.capture.explained import OWN_PATH, TORCH_PATH, explain, place
from pyrannc.capture.exported import fakes, graph, guards
from pyrannc.capture.exported.autocast import Autocast
from pyrannc.capture.exported.exporting import Exporting
from pyrannc.capture.fake_mode import FakeMode
from pyrannc.capture.reference import describe
from pyrannc.capture.replaced import replaced
from pyrannc.capture.session import substituted
from pyrannc.capture.torch_private import FakeTensor
from pyrannc.capture.values.of_one_call import OfOneCall
from pyrannc.errors import TraceError


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

    def difference(self, other) -> str:
        """How ``other`` computes otherwise; empty where it does not, whatever nodes are called."""
        return _C.ir.match(self._named(), other._named(), False).difference

    def _named(self):
        inputs, outputs = self.graph.inputs, self.graph.outputs
        objects = [
            "left by another call" if isinstance(each, FakeTensor) else describe(each)
            for each in self.objects
        ]
        return _C.ir.NamedGraph(
            self.graph, [*map(str, range(len(inputs)))], [*map(str, range(len(outputs)))], objects
        )


class _OfTensors(nn.Module):
    """The model as a function from the tensors of a call to those of its result, which may be of
    classes that torch.export does not know."""

    def __init__(self, model, shape, hooks, seen, replaced_buffers):
        super().__init__()
        self.model = model
        self._replaced = replaced_buffers  # of which that is known: path of the module, and name
        self._shape, self._hooks = shape, hooks
        # Gets the shape of the result and what the model changes: export puts attributes back.
        self._seen = seen
        self.training = model.training

    def forward(self, *tensors):
        call = pytree.unflatten(self._shape, list(tensors))
        attributes = module_attributes.snapshot(self.model)
        before = [
            (path, name, module._buffers, buffer)
            for path, module in self.model.named_modules()
            for name, buffer in module._buffers.items()
        ]
        # Their old tensors, which backward may need, live on in eager, while here they are written.
        for path, name, registry, buffer in before:
            if (path, name) in self._replaced:
                registry[name] = buffer.clone()
        result = seen_by_hooks.result_of(self.model, call["args"], call["kwargs"], self._hooks)
        self._seen.replaced = set()
        for path, name, registry, buffer in before:
            if registry.get(name) is not buffer:  # which torch.export would forget
                self._seen.replaced.add((path, name))
                buffer.copy_(registry[name])
                registry[name] = buffer
        found, shape = pytree.flatten(result)
        mask_selections.refuse_in(shape)
        self._seen.shape = shape
        self._seen.changes = module_attributes.changed(attributes, self.model)
        return tuple(found)


def export(model, call, names, dims, states, places, rows, caches, hooks=None) -> Exported:
    """Captures a call as :func:`pyrannc.capture.model.capture` does.

    Args:
        call: :class:`~pyrannc.capture.arguments.call.Call`.
        names, dims: Of its tensors: what they are called, which dimension holds the rows.
        states: ``(names, tensor, kind)`` of parameters and buffers.
        places: See :func:`pyrannc.capture.model.capture`.
        rows: At which it is traced.
        caches: :class:`~pyrannc.capture.attributes.caches.UserCaches`.

    Raises:
        TraceError: torch.export refuses the model, or would lose something of it.
    """
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        calls = _Calls(model, call, names, dims, states, places, rows, caches, hooks)
        with module_attributes.kept(model):
            first = calls.exported(states)
        if not first.changes:
            return first
        changes, later = calls.after(first)
    for each in later:
        if found := first.difference(each):
            raise second_calls.computes_otherwise(changes) from TraceError(found)
    return dataclasses.replace(first, changes=changes)


class _Calls:
    """Those of one model: the one to capture, and what later ones would be; see ``export``."""

    def __init__(self, model, call, names, dims, states, places, rows, caches, hooks):
        self._model, self._call, self._names, self._dims = model, call, names, dims
        self._states, self._places, self._rows = states, places, rows
        self._caches, self._hooks, self._replaced = caches, hooks, set()
        self._paths = {id(module): path for path, module in model.named_modules()}

    def exported(self, states) -> Exported:
        """Another call. ``states``: with the tensors that the model holds now."""
        self._caches.forget_tensors()
        model, call, dims = self._model, self._call, self._dims
        inputs = [
            _with_rows(tensor, dim, self._rows)
            for tensor, dim in zip(call.tensors, dims, strict=True)
        ]
        seen = types.SimpleNamespace()
        outer = _OfTensors(model, call.shape, self._hooks, seen, self._replaced)
        session = Exporting(self._paths)
        with fakes.used(states, self._places) as modes, session.patched():
            try:
                with random_states.refused_outside_torch():
                    program = _exported(outer, inputs, dims)
            except TraceError as error:
                place(error, _module_of(error, model))
                raise
            except Exception as error:
                if modes and (found := guards.refusal(modes[-1].shape_env)):
                    raise found from error
                text = _refusal(error) + doubt(call, self._names, dims, self._rows)
                raise explain(error, _module_of(error, model), text) from error
        if found := guards.refusal(modes[-1].shape_env):
            raise found
        if not seen.replaced <= self._replaced:  # only the end of a run tells
            self._replaced |= seen.replaced
            return self.exported(states)
        written, objects = _written(program, model, inputs, self._names, dims, states, session)
        return Exported(graph.made(written), objects, _counts(seen.shape), seen.changes)

    def after(self, first):
        """``second_calls.look`` after a ``first`` call."""
        mode = FakeMode(allow_non_fake_inputs=True)
        with mode:
            of_states = {id(each): fakes.like(each, self._places) for _, each, _ in self._states}
        now = [(names, of_states[id(each)], kind) for names, each, kind in self._states]
        with substituted(self._model, of_states):

            def another():
                call = self.exported(now)
                module_attributes.put(self._model, call.changes)  # torch.export has not left them
                return call

            def follow():
                return self._followed(mode, now)

            before = module_attributes.snapshot(self._model)
            try:
                follow()
            except Exception as error:  # only torch.export can follow the model
                log.debug("frontend", f"the first call, followed by itself, fails: {error}")
                module_attributes.put(self._model, first.changes)
            return second_calls.look(self._model, before, another, follow)

    def _followed(self, mode, states):
        """A call of the model by itself, for :func:`second_calls.look`."""
        self._caches.forget_tensors()
        with mode:
            inputs = [
                Like(tensor, dim).fake(tensor, self._rows)
                for tensor, dim in zip(self._call.tensors, self._dims, strict=True)
            ]
        tree = pytree.unflatten(self._call.shape, inputs)
        parameters, buffers = (
            [tensor for _, tensor, kind in states if kind == wanted]
            for wanted in ("parameter", "buffer")
        )
        of_call = OfOneCall([tree["args"], tree["kwargs"], parameters], buffers)
        patches = Exporting(self._paths, always=True).patched()
        with mode, patches, random_states.refused_outside_torch(), of_call:
            result = seen_by_hooks.result_of(self._model, tree["args"], tree["kwargs"], self._hooks)
            results, _ = pytree.flatten(result)
        return of_call, of_call.leading_to(results)


def _exported(outer, inputs, dims):
    dynamic = tuple(None if dim is None else {dim: torch.export.Dim.DYNAMIC} for dim in dims)
    quiet = replaced(torch_private.export_trace(), print=lambda *_, **__: None)
    with quiet, warnings.catch_warnings(record=True) as seen:
        program = torch.export.export(
            outer, tuple(inputs), dynamic_shapes={"tensors": dynamic}, strict=False
        )
    for each in seen:
        # What forward() leaves in attributes is seen here, and told to who reads it.
        if not str(each.message).startswith("The tensor attribute"):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return program


def _written(program, model, inputs, names, dims, states, session):
    cloned, own = set(), (TORCH_PATH, OWN_PATH)
    attributes = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }
    paths = collections.defaultdict(list)  # forward() may have put modules elsewhere
    for named in (model.named_parameters, model.named_buffers):
        for path, tensor in named(remove_duplicate=False):
            paths[id(tensor)].append(path)
    while True:
        autocast = Autocast({"cpu", *(tensor.device.type for tensor in inputs)})
        writer = graph.Writer(type(model).__name__, own, cloned, attributes, autocast)
        outputs = _walked(writer, program, names, dims, states, paths, session)
        if writer.written_constants <= cloned:
            return writer.finish(outputs), writer.objects
        cloned |= writer.written_constants


def _walked(writer, program, names, dims, states, paths, session):
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
        now = {*state_names, *paths.get(id(tensor), ())}
        fake = next((fakes[s.arg.name] for s in specs if _own(s.target) in now), tensor.detach())
        made = writer.add_state(state_names, _Described(fake, tensor), kind)
        state_at |= dict.fromkeys(now, made)
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
    results = graph.Walk(program.graph_module, writer, session.python_calls).run(*given)
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
        return tensor.detach().requires_grad_(tensor.requires_grad)
    index = torch.arange(rows, device=tensor.device) % max(tensor.shape[dim], 1)
    if tensor.shape[dim] == 0:
        shape = [rows if d == dim else size for d, size in enumerate(tensor.shape)]
        return tensor.new_zeros(shape).requires_grad_(tensor.requires_grad)
    return tensor.detach().index_select(dim, index).requires_grad_(tensor.requires_grad)


def _counts(shape):
    """The shape of the result with a Count for each integer that depends on the rows."""
    writer = graph.Writer("", ())
    if isinstance(shape, pytree.Constant) and isinstance(shape.value, torch.SymBool):
        raise TraceError(f"the result of the model depends on the batch size: {shape.value}")
    if isinstance(shape, pytree.Constant) and isinstance(
        shape.value, torch.SymInt | torch.SymFloat
    ):
        try:
            number = writer.affine(shape.value)
        except TraceError as error:
            text = f"the result of the model depends on the batch size: {error}"
            raise TraceError(text) from error
        if isinstance(number, graph.Affine):
            return pytree.Count(*number)
        return pytree.Constant(number)
    if not isinstance(shape, pytree.Container):
        return shape
    children = tuple(_counts(child) for child in shape.children)
    return dataclasses.replace(shape, children=children)


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
