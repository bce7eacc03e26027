"""One trace of a model, at one number of rows."""

import dataclasses

import torch

from pyrannc.capture import hook_probes, mask_selections, random_states, seen_by_hooks
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.batch_dims import doubt
from pyrannc.capture.arguments.call import Like
from pyrannc.capture.attributes import module_attributes, new_parameters, second_calls
from pyrannc.capture.explained import explain, place
from pyrannc.capture.session import Session, substituted
from pyrannc.capture.traced.replaced_buffers import (
    copy_replaced_buffers,
    put_buffers,
    store_replaced_buffers,
)
from pyrannc.capture.values.logged_numbers import Reader
from pyrannc.capture.values.of_one_call import OfOneCall
from pyrannc.errors import TraceError


@dataclasses.dataclass
class Traced:
    """What it gives.

    Attributes:
        trace: ``_C.frontend.Trace``.
        shape: What the model returned, without its tensors.
        replaced: Ids of the buffers that it replaced.
        changes: The attributes that it changed; see ``attributes.changed``.
        again: Traces of calls after it; see ``second_calls.look``.
        watching: ``hook_probes.ModuleCalls``, or None.
        written_arguments: Paths of those that it wrote.
        buffers_read: What the buffers hold that Python reads, as lists, by name.
        left: Where the numbers of its tensors go; see ``logged_numbers.Left``.
    """

    trace: object
    shape: object
    replaced: set
    changes: dict = dataclasses.field(default_factory=dict)
    again: list = dataclasses.field(default_factory=list)
    watching: object = None
    written_arguments: list = dataclasses.field(default_factory=list)
    left: list = dataclasses.field(default_factory=list)
    buffers_read: dict = dataclasses.field(default_factory=dict)


def one_trace(model, call, names, dims, states, mode, fakes, rows, replaced, whole, hooks, probes):
    """``replaced``: ids of the buffers of which it is known that they are. ``whole``: paths of the
    modules of which it is known that no operator of theirs can be traced. ``probes``: None where
    it is not known which ones are needed."""

    paths = {id(module): path for path, module in model.named_modules()}

    def run():
        session, tree = _session(model, call, names, dims, states, mode, fakes, rows, paths, whole)
        watching = _watching(session, hooks, probes, rows)
        arguments, _ = pytree.flatten(tree)
        versions = [tensor._version for tensor in arguments]
        session.reader = Reader()
        try:
            with (
                session.recording(),
                random_states.refused_outside_torch(),
                session.reader.reading(model),
            ):
                copy_replaced_buffers(model, states, fakes, replaced)
                parameters = new_parameters.held(model)
                result = seen_by_hooks.result_of(
                    model, tree["args"], tree["kwargs"], hooks, watching
                )
                new_parameters.refuse(model, parameters)
                found = store_replaced_buffers(model, states, fakes)
                with session.hidden():
                    outputs, shape = pytree.flatten(result, session.row_lists.whole_of)
                mask_selections.refuse_in(shape)
                del result
                left, numbers = session.reader.finish(model)
                trace = session.tracer.finish(type(model).__name__, rows, [*outputs, *numbers])
        except TraceError as error:
            raised, module = session.failure or (None, "")
            if raised is error:
                place(error, module)
            raise
        except Exception as error:
            _, module = session.failure or (None, "")
            text = f"{type(error).__name__} while the model was traced: {error}"
            text += doubt(error, call, names, dims, rows)
            raise explain(error, module, text, model) from error
        written = call.written(arguments, versions)
        return Traced(
            trace,
            shape,
            found,
            watching=watching,
            written_arguments=written,
            left=left,
            buffers_read=session.buffers_read.numbers,
        )

    def followed():
        session, tree = _session(model, call, names, dims, states, mode, fakes, rows, paths, whole)
        parameters, buffers = (
            [fakes[id(tensor)] for _, tensor, kind in states if kind == wanted]
            for wanted in ("parameter", "buffer")
        )
        of_call = OfOneCall([tree["args"], tree["kwargs"], parameters], buffers)
        session.reader = Reader()
        with (
            session.recording(), random_states.refused_outside_torch(), session.hidden(), of_call,
            session.reader.reading(model),
        ):  # fmt: skip
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
        if kind == "buffer":
            session.buffers.append((fakes[id(tensor)], state_names[0], tensor))
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
