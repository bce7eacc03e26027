"""One program of torch.export, non-strict: of a call with one number of rows, or with a symbol for
it.

What torch.export would get silently wrong is done beside it, or refused: a custom autograd
function, whose own backward it loses, becomes one operator; casts of autocast, which it leaves out,
are added; a number of rows that it specialises to is an error.
"""

import collections
import dataclasses
import types
import warnings

import torch
from torch import nn

from pyrannc.capture import (
    hook_probes,
    mask_selections,
    random_states,
    seen_by_hooks,
    torch_private,
)
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.batch_dims import doubt
from pyrannc.capture.attributes import module_attributes, new_parameters
from pyrannc.capture.explained import OWN_PATH, TORCH_PATH, explain, place, refuse_outsiders
from pyrannc.capture.exported import fakes, graph, guards
from pyrannc.capture.exported.autocast import Autocast
from pyrannc.capture.exported.exporting import Exporting
from pyrannc.capture.replaced import in_this_thread, replaced
from pyrannc.capture.values.logged_numbers import Reader
from pyrannc.errors import TraceError


@dataclasses.dataclass(frozen=True)
class Program:
    """What it gives.

    Attributes:
        written: The graph, as it is in JSON.
        objects: Its constants.
        shape: What the model returned, without its tensors.
        replaced: Paths of the modules, and names, of the buffers that it replaced.
        changes: The attributes that it changed; see ``module_attributes.changed``.
        watching: ``hook_probes.ModuleCalls``, or None.
        written_arguments: Paths of those that it wrote.
        buffers_read: What the buffers hold that Python reads, as lists, by name.
        left: Where the numbers of its tensors go; see ``logged_numbers.Left``.
    """

    written: dict
    objects: list
    shape: object
    replaced: set
    changes: dict
    watching: object
    written_arguments: list
    left: list
    buffers_read: dict


class _OfTensors(nn.Module):
    """The model as a function from the tensors of a call to those of its result, which may be of
    classes that torch.export does not know."""

    def __init__(self, model, call, hooks, probes, seen, replaced_buffers, session):
        super().__init__()
        self.model = model
        self._replaced = replaced_buffers  # of which that is known: path of the module, and name
        self._call, self._session = call, session
        self._hooks, self._has_probes = hooks, probes is not None
        self._buffers_at = {}
        for path, module in model.named_modules():
            for name, buffer in module._buffers.items():
                self._buffers_at[path, name] = f"{path}.{name}" if path else name, buffer
        # Gets what else Program holds: export puts attributes back.
        self._seen = seen
        self.training = model.training

    def forward(self, *tensors):
        own = len(self._call.tensors)
        call = pytree.unflatten(self._call.shape, list(tensors[:own]))
        probes = list(tensors[own:]) if self._has_probes else None
        versions = [tensor._version for tensor in tensors[:own]]
        attributes = module_attributes.snapshot(self.model)
        before = [
            (path, name, module._buffers, buffer)
            for path, module in self.model.named_modules()
            for name, buffer in module._buffers.items()
        ]
        for path, name, _, buffer in before:
            if buffer is not None:
                self._session.known.add_buffer(buffer, *self._buffers_at[path, name])
        # Their old tensors, which backward may need, live on in eager, while here they are written.
        for path, name, registry, buffer in before:
            if (path, name) in self._replaced:
                registry[name] = buffer.clone()
        watching = None
        if self._hooks and self._hooks.watched:
            watching = hook_probes.ModuleCalls(self._hooks.watched, probes)
        parameters = new_parameters.held(self.model)
        reader = self._session.reader = Reader()
        with reader.reading(self.model):
            result = seen_by_hooks.result_of(
                self.model, call["args"], call["kwargs"], self._hooks, watching
            )
        new_parameters.refuse(self.model, parameters)
        self._seen.replaced = set()
        for path, name, registry, buffer in before:
            if registry.get(name) is not buffer:  # which torch.export would forget
                self._seen.replaced.add((path, name))
                buffer.copy_(registry[name])
                registry[name] = buffer
        found, shape = pytree.flatten(result, self._session.row_lists.whole_of)
        mask_selections.refuse_in(shape)
        self._seen.shape, self._seen.watching = shape, watching
        self._seen.written_arguments = self._call.written(tensors[:own], versions)
        self._seen.changes = module_attributes.changed(attributes, self.model)
        del result
        self._seen.buffers_read = self._session.known.buffers.numbers
        self._seen.left, numbers = reader.finish(self.model)
        return (*found, *numbers)


def one_program(
    model, call, names, dims, states, places, rows, symbol, replaced, whole, hooks, probes
) -> Program:
    """``symbol``: the program is to hold at any number of rows. ``replaced``: of the buffers of
    which it is known that they are. ``whole``: modules of which it is known that no operator of
    theirs can be exported. ``probes``: None where it is not known which ones are needed.

    Raises:
        TraceError: torch.export refuses the model, or would lose something of it.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    inputs = [_with_rows(tensor, dim, rows) for tensor, dim in zip(call.tensors, dims, strict=True)]
    added = [probe.zeros(rows).requires_grad_() for probe in probes or ()]
    seen, session = types.SimpleNamespace(), Exporting(paths, whole=whole)
    outer = _OfTensors(model, call, hooks, probes, seen, replaced, session)
    dynamic = dims if symbol else [None] * len(dims)
    with fakes.used(states, places, symbols=symbol) as modes, session.patched():
        try:
            with random_states.refused_outside_torch():
                program = _exported(outer, [*inputs, *added], [*dynamic, *(None for _ in added)])
        except TraceError as error:
            place(error, _module_of(error, model))
            raise
        except Exception as error:
            if modes and (found := guards.refusal(modes[-1].shape_env)):
                raise found from error
            text = _refusal(error) + doubt(error, call, names, dims, rows)
            raise explain(error, _module_of(error, model), text, model) from error
    if found := guards.refusal(modes[-1].shape_env):
        raise found
    names = [*names, *(probe.name for probe in probes or ())]
    dims = [*dims, *(probe.dim for probe in probes or ())]
    refuse_outsiders(model, program.constants.values(), torch_private.tensors_read(modes[-1]))
    written, objects = _written(program, model, inputs, names, dims, states, session)
    return Program(written, objects, **vars(seen))


def _exported(outer, inputs, dims):
    dynamic = tuple(None if dim is None else {dim: torch.export.Dim.DYNAMIC} for dim in dims)
    quiet = in_this_thread(lambda *_, **__: None, print)
    show = warnings.showwarning

    def show_others(message, *args, **kwargs):
        # What forward() leaves in attributes is seen here, and told to who reads it.
        if not str(message).startswith("The tensor attribute"):
            show(message, *args, **kwargs)

    with (
        replaced(torch_private.export_trace(), print=quiet),
        # Not catch_warnings(), which would take the warnings of all threads.
        replaced(warnings, showwarning=in_this_thread(show_others, show)),
    ):
        return torch.export.export(
            outer, tuple(inputs), dynamic_shapes={"tensors": dynamic}, strict=False
        )


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
    for spec, node in zip(specs, placeholders, strict=True):
        if spec.kind == kinds.USER_INPUT:
            given.append(values[spec.arg.name])
        elif spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            given.append(state_at[_own(spec.target)])
        elif spec.kind == kinds.CONSTANT_TENSOR:
            constant = program.constants[spec.target]
            if graph.is_written_number(node):
                given.append(constant.item())
            else:
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
        self.untyped_storage, self.device = fake.untyped_storage, fake.device


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
