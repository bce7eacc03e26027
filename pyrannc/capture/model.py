"""From a model and the arguments of one call to a graph that runs at any batch size."""

import copy
import dataclasses
import gc
import threading

import torch

from pyrannc import _C, progress
from pyrannc.capture import (
    hook_probes,
    mask_selections,
    random_states,
    second_calls,
    seen_by_hooks,
)
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.batch_dims import doubt, find_batch_dims, input_names
from pyrannc.capture.arguments.call import Call, CallMismatch, Like
from pyrannc.capture.arguments.refusals import refuse_model
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.attributes.caches import UserCaches
from pyrannc.capture.fake_mode import FakeMode
from pyrannc.capture.reference import Reference, describe
from pyrannc.capture.replaced_buffers import (
    copy_replaced_buffers,
    put_buffers,
    store_replaced_buffers,
)
from pyrannc.capture.session import Session, SizeUnknown, explain, place, substituted
from pyrannc.capture.torch_private import FakeTensorMode
from pyrannc.capture.values.of_one_call import OfOneCall
from pyrannc.errors import TraceError

# In torch 2.11 built for CUDA, where there is no GPU, the first fake mode of a process leaves a
# pointer to something that dies with its thread: that must not be the thread of a capture.
with FakeTensorMode():
    pass

# Numbers of rows to trace at; three prove that what depends on them does so linearly.
_ROWS = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_TRACES = 3


@dataclasses.dataclass(frozen=True)
class Choices:
    """How the graph is rewritten; see :func:`capture`."""

    exact_loss: bool
    explicit_draws: bool
    sync_batch_norm: bool
    hooks: object = None  # ModuleHooks: what observing hooks see is among the outputs


class Capture:
    """A model's forward pass as a graph, and how its calls map to the graph's inputs and outputs.

    Attributes:
        whole: The forward pass as a ``_C.ir.Graph``, generic in the batch size.
        graph: The same without what ``preludes`` compute; this is what is planned and run.
        preludes: Graphs that give what ``graph`` has to know of the whole batch first: their
            outputs are its last inputs.
        objects: The torch objects that the graph refers to, by object id.
        made_dense: Operator, module and source line of each node of which the model asks for a
            sparse gradient, and gets a dense one.
        input_paths: Where each tensor of a call stands in it: ``kwargs['labels']``.
        batch_dims: The dimension of each of them that holds the rows; None where there are none.
        parameter_names, buffer_names: Of the model, tied ones under their first name.
        changed_attributes: Paths of the attributes that forward() changes in Python.
        tensors_left: Those of them that hold tensors; see ``module_attributes.tensors_left``.
        probes: Of hooks for the backward of modules: further inputs of the graph.
        hooked_calls: Where they are; ``hook_probes.ModuleCalls.ends``.
    """

    def __init__(self, native_capture, call, batch_dims, outputs, states, choices, probes, traced):
        self.native = native_capture
        self.changed_attributes = module_attributes.without_marks(traced.changes)
        self.tensors_left = module_attributes.tensors_left(traced.changes)
        self.probes = probes
        self.hooked_calls = traced.watching.ends if traced.watching else []
        graph, changed = _C.ir.dense_gradients(native_capture.graph)
        nodes = (graph.nodes[index] for index in changed)
        self.made_dense = [[node.op, node.module, node.source] for node in nodes]
        graph = _C.ir.exact_means(graph)
        if choices.explicit_draws:
            graph = _C.ir.explicit_draws(graph)
        if choices.sync_batch_norm:
            graph = _C.ir.whole_batch_statistics(graph)
        self._choices = choices
        self._set_graph(_C.ir.infer_rows(graph))
        self.objects = native_capture.objects
        self.input_paths = call.paths
        self.batch_dims = batch_dims
        self.parameter_names = [names[0] for names, tensor, kind in states if kind == "parameter"]
        self.buffer_names = [names[0] for names, tensor, kind in states if kind == "buffer"]
        hooks = choices.hooks
        self.hooks = hooks if hooks and (hooks.observed or hooks.watched) else None
        self._shape = call.shape
        self._likes = [
            Like(tensor, dim) for tensor, dim in zip(call.tensors, batch_dims, strict=True)
        ]
        self._outputs = outputs
        # For each of the graph's inputs and outputs, the place in a call and in its result.
        self._input_order = list(range(len(self.input_paths) + len(probes)))
        self._output_order = list(range(len(pytree.paths(outputs))))

    def _set_graph(self, whole):
        self.whole = whole
        parts = _C.ir.hoist_input_sums(whole, by_share=not self._choices.exact_loss)
        self.graph, self.preludes = parts.main, parts.preludes

    def without_dropout(self) -> "Capture":
        """This capture with all dropout at probability 0."""
        other = copy.copy(self)
        other._set_graph(_C.ir.without_dropout(self.whole))
        return other

    def reference(self) -> Reference:
        """What other ranks have to know of this capture."""
        inputs = self._in_order(self.paths_of_inputs())
        objects = [describe(item) for item in self.objects]
        return Reference(self.whole, inputs, self.output_paths(), objects, self.made_dense)

    def following(self, reference: Reference) -> "Capture":
        """This capture with the graph of ``reference``, another rank's capture of the same model.

        Raises:
            TraceError: They are not the same, whatever their nodes are called and in what order
                they come; says what differs.
        """
        match = reference.match(self.reference(), keyed_draws=self._choices.explicit_draws)
        if match.difference:
            raise TraceError(match.difference)
        other = copy.copy(self)
        other._set_graph(reference.graph)
        other.objects = [None if own is None else self.objects[own] for own in match.objects]
        other.made_dense = reference.made_dense
        other._input_order = [self._input_order[own] for own in match.inputs]
        other._output_order = [self._output_order[own] for own in match.outputs]
        return other

    def _in_order(self, items) -> list:
        """What is known of each tensor of a call and of each probe, or these tensors, for
        ``whole.inputs``."""
        return [items[index] for index in self._input_order]

    def paths_of_inputs(self) -> list[str]:
        """Where the tensors of a call stand, and names of probes, in this order."""
        return [*self.input_paths, *(probe.name for probe in self.probes)]

    def inputs(self, call, probes=None) -> list[torch.Tensor]:
        """The tensors of a :class:`Call`, and of ``probes`` or zeros, for ``whole.inputs``."""
        if probes is None:
            rows = call.rows(self.batch_dims)
            probes = [probe.zeros(rows) for probe in self.probes]
        return self._in_order([*call.tensors, *probes])

    def inputs_with_rows(self) -> list[bool]:
        """Which of :meth:`inputs` hold rows of the batch."""
        dims = [dim is not None for dim in self.batch_dims]
        return self._in_order([*dims, *(True for _ in self.probes)])

    def flatten(self, args, kwargs) -> list[torch.Tensor]:
        """As :meth:`inputs`, of the arguments of a call.

        Raises:
            CallMismatch: The call differs from the captured one in more than the batch size.
        """
        call = Call(args, kwargs)
        if found := self.difference(call):
            raise CallMismatch(found)
        return self.inputs(call)

    def difference(self, call, any_length=()) -> str | None:
        """How a :class:`Call` differs from the captured one in more than its rows, if it does; in
        the tensors ``any_length`` (indices) also in more than other lengths.
        """
        if found := pytree.difference(self._shape, call.shape, "the call"):
            found = found.replace("the call['args']", "args").replace(
                "the call['kwargs']", "kwargs"
            )
            return f"{found} when the model was captured"
        for index, (tensor, like) in enumerate(zip(call.tensors, self._likes, strict=True)):
            if found := like.difference(tensor, index in any_length):
                return f"{call.paths[index]} {found} when the model was captured"
        return None

    def sizes(self) -> dict[str, list]:
        """Of each tensor of the call, by its path; None in the dimension of the rows."""
        return {
            path: [None if dim == like.dim else size for dim, size in enumerate(like.shape)]
            for path, like in zip(self.input_paths, self._likes, strict=True)
        }

    def batch_size(self, args, kwargs) -> int:
        """The number of rows of a call that :meth:`flatten` accepts."""
        return Call(args, kwargs).rows(self.batch_dims)

    def output_paths(self) -> list[str]:
        """Where each of ``graph.outputs`` stands in what the model returns: ``output.logits``."""
        if self.hooks is None:
            paths = pytree.paths(self._outputs, "output")
        else:
            result, seen = self._outputs.children
            paths = pytree.paths(result, "output") + pytree.paths(seen, "hooks")
        return [paths[index] for index in self._output_order]

    def seen_in(self) -> list:
        """For each of ``graph.outputs`` the path of the module whose hooks see it, or None."""
        if self.hooks is None:
            return [None] * len(self._output_order)
        result, seen = self._outputs.children
        found = [None] * len(pytree.paths(result))
        for call in seen.children:  # path, kind, what is seen
            found += [call.children[0].value] * len(pytree.paths(call))
        return [found[index] for index in self._output_order]

    def unflatten(self, tensors, rows):
        """What the model returns for ``rows``, with ``tensors`` for ``graph.outputs``; with
        ``hooks`` a pair of that and what :meth:`ModuleHooks.call` takes."""
        placed = dict(zip(self._output_order, tensors, strict=True))
        return pytree.unflatten(self._outputs, placed, rows)


def capture(
    model,
    args=(),
    kwargs=None,
    batch_dims=None,
    exact_loss=False,
    known=None,
    explicit_draws=False,
    sync_batch_norm=False,
    hooks=None,
    places=None,
    front_end="torchscript",
) -> Capture:
    """Captures ``model(*args, **kwargs)`` without running it: no memory, no computation.

    Args:
        model: Any ``nn.Module``. It is unchanged afterwards.
        args, kwargs: Of one call. Tensors are inputs of the graph; all else is constant.
        batch_dims: Which dimension of an input holds the rows, where it is not dimension 0: an int
            for all of them, or a dict from argument name or position to an int, or None for an
            input without rows. An input whose dimension 0 differs from the majority has none.
        exact_loss: Leaves what is not linear in means over the batch as it is. Else, where nothing
            else makes rows interact, each share of the batch computes it from its own rows.
        known: ``batch_dims`` of an earlier capture by the path of the input; they count.
        explicit_draws: Every random number can be told from seed, step, node and sample: attention
            with dropout inside becomes products, softmax and dropout.
        hooks: :class:`ModuleHooks` that ranks have agreed on; without it all hooks are part of the
            forward pass.
        places: :class:`~pyrannc.state.model_device.Places`; where the model moves, it is captured
            as on its new device. Default: where it is.
        front_end: "torchscript", torch's tracer, or "export", torch.export.
        sync_batch_norm: Batch normalisations in training take the statistics of the whole batch.

    Raises:
        TraceError: The model's Python code depends on tensor values, or on the batch size in
            another way than ``a + b * rows``, or an operator is none that ``explicit_draws`` or
            ``sync_batch_norm`` can do; names module and source line.
        ConfigError: ``batch_dims`` names no input.
    """
    refuse_model(model)
    call = Call(args, kwargs or {})
    names = input_names(model, call)
    dims = find_batch_dims(call, names, batch_dims, known)
    states = _states(model)
    choices = Choices(exact_loss, explicit_draws, sync_batch_norm, hooks)
    result = {}
    state = _C.frontend.ThreadState()
    cache = torch.is_autocast_cache_enabled()

    def work():
        try:
            with state:
                torch.set_autocast_cache_enabled(cache)
                if places and places.device.type != "cpu":
                    torch.accelerator.set_device_index(places.device.index)
                work_of = _exported if front_end == "export" else _capture
                result["capture"] = work_of(model, call, names, dims, states, choices, places)
        except BaseException as error:
            result["error"] = error

    # A thread of its own: a trace that failed leaves state in its thread that spoils later ones.
    with random_states.kept(places.device if places else None):
        thread = threading.Thread(target=work, name="rannc-capture")
        thread.start()
        thread.join()
    if "error" in result:
        raise result["error"]
    return result["capture"]


def _capture(*of_call):
    mode = FakeMode(allow_non_fake_inputs=True)
    with UserCaches() as mode.user_caches:
        return _joined(mode, *of_call)


def _joined(mode, model, call, names, dims, states, choices, places):
    """One graph of the traces at several numbers of rows."""
    with torch.inference_mode(False), mode:
        fakes = {id(tensor): _fake_like(tensor, places) for _, tensor, _ in states}
    traces, shapes = [], []
    traced_rows = _trace_rows(call, dims)
    replaced = set()  # ids of buffers
    whole = set()  # paths of modules
    probes, watched = [], choices.hooks and choices.hooks.watched

    def trace(rows, probes):
        def once():
            while True:
                try:
                    return _trace(
                        model, call, names, dims, states, mode, fakes, rows, replaced, whole,
                        choices.hooks, probes,
                    )  # fmt: skip
                except SizeUnknown as error:  # at most once for each module
                    if not error.module or error.module in whole:
                        raise
                    whole.add(error.module)
                # A trace that fails refers to itself through its error, and to each parameter:
                # no rank could release one that is not its own.
                gc.collect()

        traced = once()
        if not traced.replaced <= replaced:  # only the end of a trace tells
            replaced.update(traced.replaced)
            traced = once()
        return traced

    if watched:
        seen = [trace(rows, None).watching.seen for rows in traced_rows[:2]]
        probes = hook_probes.find(*seen, *traced_rows[:2])
    for rows in traced_rows:
        traced = trace(rows, probes)
        traces.append(traced.trace)
        shapes.append(traced.shape)
        progress.advance(len(traces), len(traced_rows))
    outputs = pytree.joined(shapes, traced_rows)
    for rows, shape in zip(traced_rows, shapes, strict=True):
        if found := pytree.difference(pytree.at_rows(outputs, rows), shape, "the result"):
            raise TraceError(f"the result of the model depends on the batch size: {found}")
    joined = _C.frontend.join(traces)
    for again in traced.again:
        second_calls.refuse_another([*traces[:-1], again], traced.changes)
    return Capture(joined, call, dims, outputs, states, choices, probes, traced)


def _exported(model, call, names, dims, states, choices, places):
    """Of a model that changes attributes the first front end's traces tell what that means."""
    from pyrannc.capture.exported import program  # takes seconds: it imports a compiler

    if places and places.moves:
        raise TraceError(
            "torch.export captures a model where it is: move it to its device first, or use "
            "Config(frontend='torchscript')"
        )
    if choices.hooks and choices.hooks.watched:
        raise TraceError(
            "torch.export does not follow hooks for the backward of modules: use "
            "Config(frontend='torchscript')"
        )
    with torch.inference_mode(False), UserCaches():
        made = program.export(
            model, call, names, dims, states, _trace_rows(call, dims)[0], choices.hooks
        )
    found = Capture(made, call, dims, made.outputs, states, choices, [], made)
    if made.changes:
        try:
            traced = _capture(model, call, names, dims, states, choices, places)
        except second_calls.LaterCallsDiffer:
            raise
        except TraceError as error:
            raise second_calls.unknown(made.changes) from error
        found.changed_attributes = traced.changed_attributes
        found.tensors_left = traced.tensors_left
    return found


def _fake_like(tensor, places):
    """A FakeTensor like a parameter or buffer, on its device or where it moves; what is meta counts
    as the host's. What its rank has released says where the model is.

    Not ``mode.from_tensor``, which keeps a weak reference to the tensor, and a tensor with weak
    references cannot be released later.
    """
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    if places and places.moves:
        device = places.device
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)


@dataclasses.dataclass
class _Traced:
    """A trace.

    Attributes:
        trace: ``_C.frontend.Trace``.
        shape: What the model returned, without its tensors.
        replaced: Ids of the buffers that it replaced.
        changes: The attributes that it changed; see ``attributes.changed``.
        again: Traces of calls after it; see ``second_calls.look``.
    """

    trace: object
    shape: object
    replaced: set
    changes: dict = dataclasses.field(default_factory=dict)
    again: list = dataclasses.field(default_factory=list)
    watching: object = None  # hook_probes.ModuleCalls


def _trace(model, call, names, dims, states, mode, fakes, rows, replaced, whole, hooks, probes):
    """``replaced``: ids of the buffers of which it is known that they are. ``whole``: paths of the
    modules of which it is known that no operator of theirs can be traced. ``probes``: None where
    it is not known which ones are needed."""

    paths = {id(module): path for path, module in model.named_modules()}

    def run():
        session, tree = _session(model, call, names, dims, states, mode, fakes, rows, paths, whole)
        watching = _watching(session, hooks, probes, rows)
        try:
            with session.recording(), random_states.refused_outside_torch():
                copy_replaced_buffers(model, states, fakes, replaced)
                result = seen_by_hooks.result_of(
                    model, tree["args"], tree["kwargs"], hooks, watching
                )
                found = store_replaced_buffers(model, states, fakes)
                with session.hidden():
                    outputs, shape = pytree.flatten(result, session.row_lists.whole_of)
                mask_selections.refuse_in(shape)
                trace = session.tracer.finish(type(model).__name__, rows, outputs)
        except TraceError as error:
            raised, module = session.failure or (None, "")
            if raised is error:
                place(error, module)
            raise
        except Exception as error:
            raise explain(session, error, doubt(call, names, dims, rows)) from error
        return _Traced(trace, shape, found, watching=watching)

    def followed():
        session, tree = _session(model, call, names, dims, states, mode, fakes, rows, paths, whole)
        parameters, buffers = (
            [fakes[id(tensor)] for _, tensor, kind in states if kind == wanted]
            for wanted in ("parameter", "buffer")
        )
        of_call = OfOneCall([tree["args"], tree["kwargs"], parameters], buffers)
        with session.recording(), random_states.refused_outside_torch(), session.hidden(), of_call:
            result = seen_by_hooks.result_of(model, tree["args"], tree["kwargs"], hooks)
            results, _ = pytree.flatten(result, session.row_lists.whole_of)
        return of_call, of_call.leading_to(results)

    def anew(function):
        """``function`` with the buffers of before."""
        put_buffers(model, states, fakes)
        return function()

    with substituted(model, fakes):
        before = module_attributes.snapshot(model)
        traced = run()
        traced.changes, traced.again = second_calls.look(
            model, before, lambda: anew(run).trace, lambda: anew(followed)
        )
    return traced


def _session(model, call, names, dims, states, mode, fakes, rows, paths, whole):
    """What a trace begins with, and the arguments of the call."""
    mode.user_caches.forget_tensors()
    session = Session(mode, paths, whole)
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and id(value) not in fakes:
                session.tracer.name_constant(value, f"{path}.{name}" if path else name)
    with mode:
        inputs = [
            Like(tensor, dim).fake(tensor, rows)
            for tensor, dim in zip(call.tensors, dims, strict=True)
        ]
    for tensor, name, dim in zip(inputs, names, dims, strict=True):
        session.tracer.add_input(name, tensor, dim)
    for state_names, tensor, kind in states:
        add = session.tracer.add_parameter if kind == "parameter" else session.tracer.add_buffer
        add(state_names, fakes[id(tensor)], tensor)
    return session, pytree.unflatten(call.shape, inputs)


def _watching(session, hooks, probes, rows):
    """What hooks of the backward see of one trace; the probes are inputs of it."""
    if not hooks or not hooks.watched:
        return None
    fakes = []
    with session.mode:
        for probe in probes or ():
            fakes.append(probe.zeros(rows).requires_grad_())
            session.tracer.add_input(probe.name, fakes[-1], probe.dim)
    return hook_probes.ModuleCalls(hooks.watched, None if probes is None else fakes)


def _states(model):
    """``(names, tensor, kind)`` of every parameter and buffer, tied ones once."""
    found = {}
    for kind, named in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            found.setdefault(id(tensor), ([], tensor, kind))[0].append(name)
    return list(found.values())


def _trace_rows(call, dims):
    """Batch sizes to trace at, away from the other sizes that the model sees."""
    taken = {
        size
        for tensor, dim in zip(call.tensors, dims, strict=True)
        for d, size in enumerate(tensor.shape)
        if d != dim
    }
    free = [rows for rows in _ROWS if rows not in taken]
    return (free + [rows for rows in _ROWS if rows in taken])[:_TRACES]
