"""The second front end: torch.export. A program of it has a symbol for the number of rows; where
Python takes that as a plain number, the graph is what programs at several numbers of rows have in
common, as it is of traces.
"""

import contextlib
import dataclasses
import gc

import torch
from torch import nn

from pyrannc import _C, log
from pyrannc.capture import hook_probes, random_states, seen_by_hooks
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.call import Like
from pyrannc.capture.attributes import module_attributes, second_calls
from pyrannc.capture.explained import OfValues, SizeUnknown
from pyrannc.capture.exported import fakes, graph, guards
from pyrannc.capture.exported.exporting import Exporting
from pyrannc.capture.exported.one_program import one_program
from pyrannc.capture.fake_mode import FakeMode
from pyrannc.capture.rows.whole_batch import OF_NO_ROWS, Alone, Traced
from pyrannc.capture.session import substituted
from pyrannc.capture.values.logged_numbers import Reader
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
        probes: Of hooks for the backward of modules.
        watching: ``hook_probes.ModuleCalls`` of the last run, or None.
        written_arguments: Paths of those that forward() writes.
        buffers_read: What the buffers hold that Python reads, as lists, by name.
        left: Where the numbers of its tensors go; see ``logged_numbers.Left``.
    """

    graph: object
    objects: list
    outputs: object
    changes: dict
    probes: list
    watching: object
    written_arguments: list
    left: list
    buffers_read: dict

    def difference(self, other, rows) -> str:
        """How ``other`` computes otherwise at a number of rows; empty where it does not."""
        return self._traced().difference(other._traced(), rows)

    def _traced(self):
        return Traced(self.graph, self.objects, self.outputs)


def export(model, call, names, dims, states, places, rows, batch, caches, hooks=None) -> tuple:
    """Captures a call as :func:`pyrannc.capture.model.capture` does; returns an :class:`Exported`
    and, where it is for one number of rows, :class:`~pyrannc.capture.rows.whole_batch.Alone`.
    Twice None where it would be as ``batch.known``.

    Args:
        call: :class:`~pyrannc.capture.arguments.call.Call`.
        names, dims: Of its tensors: what they are called, which dimension holds the rows.
        states: ``(names, tensor, kind)`` of parameters and buffers.
        places, batch: See :func:`pyrannc.capture.model.capture`.
        rows: Numbers of them: it runs at the first, and where Python takes that as a plain number,
            at each.
        caches: :class:`~pyrannc.capture.attributes.caches.UserCaches`.

    Raises:
        TraceError: torch.export refuses the model, or would lose something of it.
    """
    grad = torch.is_grad_enabled()
    # torch.func.functional_call() puts plain tensors in their places, of which torch.export wants
    # parameters.
    parameters = {
        id(each): nn.Parameter(each.detach(), each.requires_grad)
        for _, each, kind in states
        if kind == "parameter" and not isinstance(each, nn.Parameter)
    }
    states = [(given, parameters.get(id(each), each), kind) for given, each, kind in states]
    in_place = substituted(model, parameters) if parameters else contextlib.nullcontext()
    with torch.inference_mode(False), torch.set_grad_enabled(grad), in_place:
        calls = _Calls(model, call, names, dims, states, places, rows, batch, caches, hooks)
        watched = hooks and hooks.watched
        if batch.known is not None:
            with module_attributes.kept(model):
                own = calls.of_whole_batch(states, batch.known.probes)
            why = batch.known.traced().difference(own._traced(), batch.rows)
            if why and watched:
                raise TraceError(f"the model computes otherwise at {batch.rows} rows: {why}")
            return calls.alone(why) if why else (None, None)
        try:
            return calls.of_any_rows(), None
        except TraceError as error:
            if not batch.may_be_alone or watched or isinstance(error, OF_NO_ROWS):
                raise
            refused = error
        try:
            return calls.alone(str(refused))
        except TraceError:
            raise refused from refused.__cause__
        finally:
            del refused
            gc.collect()


class _Calls:
    """Those of one model: the one to capture, and what later ones would be; see ``export``."""

    def __init__(self, model, call, names, dims, states, places, rows, batch, caches, hooks):
        self._model, self._call, self._names, self._dims = model, call, names, dims
        self._batch = batch
        self._states, self._places, self._rows = states, places, rows
        self._caches, self._hooks, self._replaced = caches, hooks, set()
        self._whole = []  # modules of which it is known that no operator of theirs can be exported
        self._paths = {id(module): path for path, module in model.named_modules()}

    def of_any_rows(self) -> Exported:
        """The call at any number of rows, the whole batch's included."""
        rows = self._batch.rows
        with module_attributes.kept(self._model):
            first = self.exported(self._states)
        if rows is None:
            return self._as_later_calls(first, self.exported)
        with module_attributes.kept(self._model):
            own = self.of_whole_batch(self._states, first.probes)
        if not first.difference(own, rows):
            return self._as_later_calls(first, self.exported)

        # Of what is of no effect torch.export leaves out more where a number is plain.
        fresh = rows not in (1, *self._rows)

        def plain(states):
            return self._joined(states, [*self._rows[:2], rows] if fresh else self._rows)

        with module_attributes.kept(self._model):
            first = plain(self._states)
        if found := first.difference(own, rows):
            raise TraceError(found)
        return self._as_later_calls(first, plain)

    def alone(self, why) -> tuple:
        """The call at the whole batch's number of rows alone."""
        with module_attributes.kept(self._model):
            first = self.of_whole_batch(self._states)
        with module_attributes.kept(self._model):
            again = self.of_whole_batch(self._states)
        if found := first.difference(again, self._batch.rows):
            raise second_calls.computes_otherwise(first.changes) from TraceError(found)
        made = self._as_later_calls(first, self.of_whole_batch)
        rows = self._batch.rows
        graph = _C.ir.for_rows_alone(made.graph, rows)
        return dataclasses.replace(made, graph=graph), Alone(rows, why)

    def of_whole_batch(self, states, probes=()) -> Exported:
        """Another call, at the whole batch's number of rows."""
        program = self._program(states, self._batch.rows, False, [*probes])
        made = graph.read(program.written)
        return _exported(made, program.objects, program.shape, [*probes], program)

    def _as_later_calls(self, first, exported):
        """``first``, once later ones are known to compute the same."""
        if not first.changes:
            return first
        changes, later = self.after(first, exported)
        for each in later:
            if found := first.difference(each, self._batch.rows or self._rows[0]):
                raise second_calls.computes_otherwise(changes) from TraceError(found)
        return dataclasses.replace(first, changes=changes)

    def exported(self, states) -> Exported:
        """Another call. ``states``: with the tensors that the model holds now."""
        watched = self._hooks and self._hooks.watched
        if not watched:  # where probes are added, two numbers of rows tell
            try:
                program = self._program(states, self._rows[0], True, None)
                outputs = _counts(program.shape)
                made = graph.made(program.written)
                return _exported(made, program.objects, outputs, [], program)
            except (guards.PlainNumber, OfValues) as error:
                log.debug("frontend", f"one program for each of {self._rows} rows, because {error}")
        return self._joined(states, self._rows)

    def _joined(self, states, numbers) -> Exported:
        """What programs at several numbers of rows have in common."""
        probes = []
        if self._hooks and self._hooks.watched:
            unprobed = [self._program(states, rows, False, None) for rows in numbers[:2]]
            probes = hook_probes.find(*(each.watching.seen for each in unprobed), *numbers[:2])
        programs = [self._program(states, rows, False, probes) for rows in numbers]
        outputs = pytree.of_rows([each.shape for each in programs], numbers)
        joined = _C.frontend.join(
            [
                _C.frontend.Trace(rows, graph.read(each.written), each.objects)
                for rows, each in zip(numbers, programs, strict=True)
            ]
        )
        return _exported(joined.graph, joined.objects, outputs, probes, programs[-1])

    def _program(self, states, rows, symbol, probes):
        """See :func:`one_program`."""
        while True:
            self._caches.forget_tensors()
            try:
                program = one_program(
                    self._model, self._call, self._names, self._dims, states, self._places, rows,
                    symbol, self._replaced, self._whole, self._hooks, probes,
                )  # fmt: skip
                if program.replaced <= self._replaced:
                    return program
                self._replaced |= program.replaced  # only the end of a run tells
            except SizeUnknown as error:  # at most once for each module
                module = self._model.get_submodule(error.module)
                if symbol or not error.module or any(module is each for each in self._whole):
                    raise
                self._whole.append(module)
            gc.collect()  # a run that fails refers to itself, and to each parameter

    def after(self, first, exported):
        """``second_calls.look`` after a ``first`` call; ``exported``: makes another one."""
        mode = FakeMode(allow_non_fake_inputs=True)
        with mode:
            of_states = {id(each): fakes.like(each, self._places) for _, each, _ in self._states}
        now = [(names, of_states[id(each)], kind) for names, each, kind in self._states]
        with substituted(self._model, of_states):

            def another():
                call = exported(now)
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
                Like(tensor, dim).fake(tensor, self._rows[0])
                for tensor, dim in zip(self._call.tensors, self._dims, strict=True)
            ]
        tree = pytree.unflatten(self._call.shape, inputs)
        parameters, buffers = (
            [tensor for _, tensor, kind in states if kind == wanted]
            for wanted in ("parameter", "buffer")
        )
        of_call = OfOneCall([tree["args"], tree["kwargs"], parameters], buffers)
        session = Exporting(self._paths, always=True)
        session.reader = Reader()
        reading = session.reader.reading(self._model)
        with mode, session.patched(), random_states.refused_outside_torch(), of_call, reading:
            result = seen_by_hooks.result_of(self._model, tree["args"], tree["kwargs"], self._hooks)
            results, _ = pytree.flatten(result)
        return of_call, of_call.leading_to(results)


def _exported(made, objects, outputs, probes, last) -> Exported:
    """``last``: the Program of which the rest is told."""
    changes, watching, written = last.changes, last.watching, last.written_arguments
    return Exported(
        made, objects, outputs, changes, probes, watching, written, last.left, last.buffers_read
    )


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
