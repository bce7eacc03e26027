"""What a capture of a model is: its graph, and how calls map to it."""

import copy
import dataclasses

import torch

from pyrannc import _C
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.call import Call, CallMismatch, Like
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.reference import Reference, describe
from pyrannc.capture.rows.whole_batch import Traced
from pyrannc.capture.values import logged_numbers
from pyrannc.errors import TraceError


@dataclasses.dataclass(frozen=True)
class Choices:
    """How the graph is rewritten; see :func:`pyrannc.capture.model.capture`."""

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
        frozen_attributes: Those of them that a captured graph does not change.
        tensors_left: Those of them that hold tensors; see ``module_attributes.tensors_left``.
        buffers_read: What the buffers hold that forward() reads as numbers of Python, as lists, by
            name: the graph is of calls in which they hold the same.
        left: Where numbers go that forward() reads for a log; see ``logged_numbers.Left``.
        grad: What forward() was told where it asks torch.is_grad_enabled(), so that the graph is of
            calls in that mode alone; None where it does not ask.
        written_arguments: Paths of those that forward() writes.
        probes: Of hooks for the backward of modules: further inputs of the graph.
        hooked_calls: Where they are; ``hook_probes.ModuleCalls.ends``.
        alone: :class:`~pyrannc.capture.rows.whole_batch.Alone` where the graph is for one number of
            rows, which one replica of each stage then has together; else None.
    """

    def __init__(
        self, native_capture, call, batch_dims, outputs, states, choices, probes, traced, alone=None
    ):
        self.alone = alone
        self.native = native_capture
        self.changed_attributes = module_attributes.without_marks(traced.changes)
        self.left, self.buffers_read = traced.left, traced.buffers_read
        put = {each.path for each in traced.left}
        others = {path: value for path, value in traced.changes.items() if path not in put}
        self.tensors_left = module_attributes.tensors_left(others)
        self.frozen_attributes = [path for path in self.changed_attributes if path not in put]
        self.written_arguments = traced.written_arguments
        self.probes, self.grad = probes, None
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
        self._shape, self._call_shape = pytree.kept(call.shape), call.shape
        self._likes = [
            Like(tensor, dim) for tensor, dim in zip(call.tensors, batch_dims, strict=True)
        ]
        self._outputs = outputs
        # For each of the graph's inputs and outputs, the place in a call and in its result.
        self._input_order = list(range(len(self.input_paths) + len(probes)))
        self._returned = len(pytree.paths(outputs))  # further ones are numbers for logs
        self._output_order = list(range(len(graph.outputs)))

    def traced(self) -> Traced:
        """As a front end made it."""
        return Traced(self.native.graph, self.native.objects, self._outputs)

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

    def inputs_in_order(self, items) -> list:
        """What is known of each tensor of a call, for those of ``whole.inputs`` that are of it."""
        return [items[index] for index in self._input_order if index < len(items)]

    def paths_of_inputs(self) -> list[str]:
        """Where the tensors of a call stand, and names of probes, in this order."""
        return [*self.input_paths, *(probe.name for probe in self.probes)]

    def inputs(self, call, probes=None) -> list[torch.Tensor]:
        """The tensors of a :class:`Call`, and of ``probes`` or zeros, for ``whole.inputs``."""
        if probes is None:
            rows = call.rows(self.batch_dims) if self.probes else 0
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
        call.rows(self.batch_dims)
        return self.inputs(call)

    def difference(self, call, any_length=()) -> str | None:
        """How a :class:`Call` differs from the captured one in more than its rows, if it does; in
        the tensors ``any_length`` (indices) also in more than other lengths.
        """
        if found := self.difference_beside_tensors(call):
            return f"{found} when the model was captured"
        for index, (tensor, like) in enumerate(zip(call.tensors, self._likes, strict=True)):
            if found := like.difference(tensor, index in any_length):
                return f"{call.paths[index]} {found} when the model was captured"
        return None

    def difference_beside_tensors(self, call) -> str:
        """The same of the places of tensors, and of all else; empty where there is none."""
        found = pytree.difference(self._shape, call.shape, "the call") or ""
        return found.replace("the call['args']", "args").replace("the call['kwargs']", "kwargs")

    def example(self) -> Call:
        """A call like the captured one, of tensors without numbers in them."""
        tree = pytree.unflatten(self._call_shape, [like.empty() for like in self._likes])
        return Call(tree["args"], tree["kwargs"])

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
        paths += [f"number {index} for a log" for index in range(len(self._output_order))]
        return [paths[index] for index in self._output_order]

    def counts(self) -> list[str]:
        """Where integers stand in what the model returns that follow from the rows of the call."""
        result = self._outputs if self.hooks is None else self._outputs.children[0]
        return pytree.counts(result, "output")

    def seen_in(self) -> list:
        """For each of ``graph.outputs`` the path of the module whose hooks see it, or None."""
        if self.hooks is None:
            return [None] * len(self._output_order)
        result, seen = self._outputs.children
        found = [None] * len(pytree.paths(result))
        for call in seen.children:  # path, kind, what is seen
            found += [call.children[0].value] * len(pytree.paths(call))
        found += [None] * (len(self._output_order) - len(found))
        return [found[index] for index in self._output_order]

    def put_numbers(self, model, tensors, shows) -> None:
        """Puts numbers of ``tensors``, for ``graph.outputs``, where forward() would have.

        Args:
            shows: Prints those that forward() prints.
        """
        if self.left:
            placed = dict(zip(self._output_order, tensors, strict=True))
            numbers = [placed[index] for index in range(self._returned, len(placed))]
            logged_numbers.put(model, self.left, numbers, shows)

    def unflatten(self, tensors, rows, number=None):
        """What the model returns for ``rows``, with ``tensors`` for ``graph.outputs``; with
        ``hooks`` a pair of that and what :meth:`ModuleHooks.call` takes. ``number``: instead of
        each number that forward() reads of a tensor."""
        placed = dict(zip(self._output_order, tensors, strict=True))
        return pytree.unflatten(self._outputs, placed, rows, number)
