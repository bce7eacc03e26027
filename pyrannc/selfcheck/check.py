"""The self-check of a capture: the graph against the model, before anything is planned.

Every way in which a trace goes silently wrong (a branch that was frozen, a batch size baked into a
constant, a gradient lost in a no_grad region) shows when the graph runs on other data and another
batch size, and outputs, gradients and buffers are compared.
"""

import contextlib
import dataclasses
import math

import torch

from pyrannc import _C, progress
from pyrannc.capture import random_states, seen_by_hooks
from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes import module_attributes
from pyrannc.capture.values import logged_numbers
from pyrannc.errors import RaNNCError, TraceError
from pyrannc.selfcheck import compare, row_parts, whole_batch_sums
from pyrannc.selfcheck.compare import Difference
from pyrannc.selfcheck.locate import locate
from pyrannc.state import named_tensors

_RUNS = 4  # of the model or its graph: the model, the graph, the graph without dropout, its parts


@dataclasses.dataclass
class CheckReport:
    """What a self-check found."""

    rows: int
    """Rows of the batch that was replayed."""
    largest: dict[str, float] = dataclasses.field(default_factory=dict)
    """For each kind compared (outputs, gradients, buffers): the largest error, as a share of the
    largest entry of that kind in the model."""
    difference: Difference | None = None
    """What differs first between graph and model."""
    skipped: list[str] = dataclasses.field(default_factory=list)
    """What was not compared, with the reason."""
    rows_proved: bool = False
    """Whether replaying two row ranges apart gave the numbers of the whole batch."""
    rows_interact: str = ""
    """How row ranges replayed apart differ from the whole batch; empty when they do not, or when
    this was skipped."""

    @property
    def ok(self) -> bool:
        """Whether the graph computes what the model computes."""
        return self.difference is None

    def raise_if_wrong(self) -> None:
        """Raises TraceError, naming what differs, module and source line, unless ``ok``."""
        if self.difference is not None:
            raise TraceError(
                f"the captured graph does not compute what the model computes: {self.difference}\n"
                "  The usual cause is a branch on tensor values, or a Python number taken from a "
                "tensor: express it with torch.where, or move it out of forward. "
                "Config(self_check=False) skips this check."
            )

    def __str__(self) -> str:
        if self.difference is not None:
            return f"differs on {self.rows} rows: {self.difference}"
        errors = [f"{kind} within {error:.1e}" for kind, error in self.largest.items()]
        parts = [f"{', '.join(errors)} of the model's largest, on {self.rows} rows"]
        if self.rows_proved:
            parts.append("row ranges replayed apart agree")
        if self.rows_interact:
            parts.append(f"rows interact: {self.rows_interact}")
        return "; ".join(parts + [f"skipped: {reason}" for reason in self.skipped])


def check(model, capture, args, kwargs, seed: int = 0, home=None) -> CheckReport:
    """Compares a captured graph with its model on another batch than any it was traced with.

    The batch has 6 rows (8 when the call has 6), or those that the graph is for, made from those of
    the call. Compared are outputs,
    gradients of all parameters and buffers after the call, with random numbers replayed. The
    gradients are those of a scalar output itself and of the other floating outputs times fixed
    random weights. Then the graph runs on two row ranges apart, without dropout, and what they give
    together is compared with the whole batch.

    On an accelerator, where sums come in any order, the model runs twice, and what its two runs
    differ by is allowed, too.

    Costs one forward and backward of the model and three of the graph. Nothing stays changed:
    buffers, ``.grad``, attributes of the modules, random state.

    Args:
        home: Where the model is, if its call is on another device, to which it will be moved.

    Raises:
        TraceError: The model itself fails on the other batch.
    """
    check_ = _Check(model, capture, args, kwargs, seed, home)
    untouched = _untouched(model, capture.graph, check_.device)
    with torch.inference_mode(False), torch.enable_grad(), untouched:
        check_.compare_with_model()
        if check_.report.ok:
            check_.compare_rows_apart()
    return check_.report


class _Before(torch.autograd.Function):
    """What a parameter held before, with the parameter's gradient."""

    @staticmethod
    def forward(ctx, parameter, before):
        return before.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _Check:
    def __init__(self, model, capture, args, kwargs, seed, home):
        self.model, self.capture, self.seed = model, capture, seed
        self.graph, self.whole = capture.graph, capture.whole
        self.call = (args, kwargs)
        self.originals = capture.flatten(args, kwargs)
        if home is not None:
            self.originals = [tensor.to(home) for tensor in self.originals]
        self.layouts = [self.whole.values[value].rows for value in self.whole.inputs]
        self.rows = 8 if capture.batch_size(args, kwargs) == 6 else 6
        if capture.alone:
            self.rows = capture.alone.rows
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.buffers = {
            name: buffer.detach().clone()
            for name, buffer in model.named_buffers(remove_duplicate=False)
        }
        self.leaves = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.written = {  # parameters, as they were before the first run
            name: self.parameters[name].detach().clone()
            for name in _C.ir.written_names(self.graph)
            if name in self.parameters
        }
        tensors = [*self.parameters.values(), *self.originals]
        self.device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        self.tolerance = compare.tolerance(self.graph, self.device)
        self.report = CheckReport(self.rows)
        rows, paths = capture.batch_size(args, kwargs), capture.paths_of_inputs()
        self.own_rows = rows
        self.batch = row_parts.other_batch(
            self.originals, self.layouts, rows, self.rows, seed, paths
        )
        # For a model that refuses made-up numbers, as of quaternions that have lost their length,
        # or rows in another order or twice.
        self.others = [
            (count, row_parts.own_batch(self.originals, self.layouts, rows, count))
            for count in (self.rows, rows)
            if not capture.alone or count == self.rows
        ]

    def compare_with_model(self):
        random_states.seed(self.seed, self.device)
        if self.device.type != "cpu":
            self.allow_own_differences()
        expected = self.run_model()
        progress.advance(1, _RUNS)
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        random_state = random_states.of_torch(self.device)
        random_states.seed(self.seed, self.device)
        outputs, found_buffers = self.replay(self.graph, self.rows, self.batch)
        progress.advance(2, _RUNS)
        same_random = random_states.are_equal(random_state, random_states.of_torch(self.device))
        found = self.capture.unflatten(outputs, self.rows, pytree.ANY_NUMBER)

        self.compare_outputs(expected, found)
        if self.report.ok:
            self.compare_gradients(expected, found)
        if self.report.ok and found_buffers:
            self.compare_tensors("buffers", {n: buffers[n] for n in found_buffers}, found_buffers)
        if self.report.ok:
            return
        if not same_random:
            self.report.difference.note += (
                "; the graph drew other random numbers than the model, which happens when a random "
                "operator was captured in another order, or not at all"
            )
            return
        held = self.parameters_as_before() | {n: b.clone() for n, b in self.buffers.items()}
        self.put_state_back()  # for models whose output depends on their buffers
        random_states.seed(self.seed, self.device)
        batch = list(self.batch)
        whole_batch_sums.add(self.capture, [batch], [self.rows], self.buffers, str(self.device))
        locate(self.report.difference, self.capture, self.model, self.new_call(), batch, held)

    def allow_own_differences(self):
        """Runs the model once more, and adds what its two runs differ by to the tolerance."""
        runs = []
        for _ in range(2):
            random_states.seed(self.seed, self.device)
            outputs = pytree.flatten(self.run_model())[0]
            given = dict(enumerate(output.detach().clone() for output in outputs))
            try:
                gradients = self.gradients(outputs)
            except RuntimeError:  # compare_gradients() says so
                gradients = {}
            runs.append((given, gradients))
            self.put_state_back()
        random_states.seed(self.seed, self.device)
        (outputs, gradients), (others, other_gradients) = runs
        for some, once_more in ((outputs, others), (gradients, other_gradients)):
            error, _ = compare.tensors("two runs", some, once_more, math.inf)
            if math.isfinite(error):
                self.tolerance += error

    def put_state_back(self):
        """Buffers, and parameters that a run writes, as before the first run."""
        with torch.no_grad():
            for name, buffer in self.model.named_buffers(remove_duplicate=False):
                named_tensors.write(buffer, self.buffers[name])
            for name, then in self.written.items():
                self.parameters[name].copy_(then)

    def run_model(self):
        args, kwargs = self.new_call()
        try:
            with logged_numbers.not_shown(self.capture.left):
                return seen_by_hooks.result_of(self.model, args, kwargs, self.capture.hooks)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if self.others:
                self.rows, self.batch = self.others.pop(0)
                self.report.rows = self.rows
                self.report.skipped.append(
                    "data that the self-check made up, on which the model fails while this batch "
                    f"passes: {text}"
                )
                self.put_state_back()
                random_states.seed(self.seed, self.device)
                return self.run_model()
            of_batch = "" if self.rows == self.own_rows else " that the self-check put together"
            raise TraceError(
                f"the model fails on {self.rows} rows of this call{of_batch}: {text}\n  If "
                "dimension 0 of some input is not the batch, name the batch dimensions with "
                "RaNNCModule(batch_dims=...)."
            ) from error

    def new_call(self):
        """The call's arguments with clones of the other batch in place of their tensors."""
        _, shape = pytree.flatten(self.call)
        # These are not the batch itself, because the model may write its inputs.
        return pytree.unflatten(shape, [tensor.clone() for tensor in self.batch])

    def replay(self, graph, count, batch):
        """Outputs of a graph, and the buffers that it takes as they are afterwards."""
        return self.replay_parts(graph, [count], [batch])[0]

    def replay_parts(self, graph, sizes, parts):
        """The same for each of several parts of a batch, which know what they must of the whole."""
        parts = [list(part) for part in parts]
        whole_batch_sums.add(self.capture, parts, sizes, self.buffers, str(self.device))
        interpreter = _C.runtime.Interpreter(graph, self.capture.objects, str(self.device))
        names = interpreter.state_names()
        replays = []
        for part, size in zip(parts, sizes, strict=True):
            buffers = {name: self.buffers[name].clone() for name in names if name in self.buffers}
            parameters = self.parameters_as_before()
            held = [buffers[n] if n in buffers else parameters[n] for n in names]
            replays.append((interpreter.run(part, held, size), buffers))
        return replays

    def parameters_as_before(self):
        """Parameters by name; copies of those that a run writes, with the originals' gradients."""
        copies = {n: _Before.apply(self.parameters[n], then) for n, then in self.written.items()}
        return self.parameters | copies

    # -- comparing ------------------------------------------------------------------------------

    def compare_tensors(self, kind, expected, found):
        error, self.report.difference = compare.tensors(kind, expected, found, self.tolerance)
        self.report.largest[kind] = error

    def compare_outputs(self, expected, found):
        wanted, wanted_shape = pytree.flatten(expected)
        given, given_shape = pytree.flatten(found)
        if differs := pytree.difference(wanted_shape, given_shape, "the output"):
            self.report.difference = Difference(
                "outputs", "output", math.inf, self.tolerance, note=differs
            )
            return
        names = pytree.paths(wanted_shape, "output")
        self.compare_tensors(
            "outputs",
            dict(zip(names, wanted, strict=True)),
            dict(zip(names, given, strict=True)),
        )

    def compare_gradients(self, expected, found):
        try:
            wanted = self.gradients(pytree.flatten(expected)[0])
        except RuntimeError as error:
            # It writes a saved tensor in place, say; such a model still serves for inference.
            self.report.skipped.append(
                f"gradients, because the model's own backward fails: {error}"
            )
            self.leaves = {}
            return
        try:
            given = self.gradients(pytree.flatten(found)[0])
        except RuntimeError as error:
            self.refuse_late_writes(error)
            raise
        if bool(wanted) != bool(given):
            side = "model's" if wanted else "graph's"
            self.report.difference = Difference(
                "gradients", "all parameters", math.inf, self.tolerance,
                note=f"only the {side} outputs require a gradient",
            )  # fmt: skip
        elif wanted:
            self.compare_tensors("gradients", wanted, given)
        else:
            self.report.skipped.append("gradients, because no output requires one")

    def refuse_late_writes(self, error):
        """Of parameters, through `.data` or `detach()` in the other order than a graph can."""
        if "modified by an inplace operation" not in str(error) or not self.written:
            return
        raise TraceError(
            f"'{next(iter(self.written))}' is written in forward() after it was computed with, so "
            "the backward of a captured model would compute with what was written.\n  Eager "
            "PyTorch does not see this where the write goes through .data. Write before the use, "
            "or in the training loop after optimizer.step()."
        ) from error

    def gradients(self, outputs) -> dict:
        """Each parameter's, zeros where nothing flows; empty when no output has a gradient."""
        generator = torch.Generator().manual_seed(self.seed)
        terms = []
        for output in outputs:
            if not output.is_floating_point():
                continue
            weights = torch.randn(output.shape, generator=generator).to(output)
            if output.requires_grad:
                terms.append(output if output.dim() == 0 else (output * weights).sum())
        if not terms or not self.leaves:
            return {}
        loss = sum(term.to(torch.promote_types(term.dtype, torch.float32)) for term in terms)
        found = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if gradient is None else gradient.to_dense()
            for (name, leaf), gradient in zip(self.leaves.items(), found, strict=True)
        }

    # -- rows apart -----------------------------------------------------------------------------

    def compare_rows_apart(self):
        if reason := _C.ir.why_shares_differ(self.graph):
            self.report.skipped.append(f"row ranges apart, because {reason}")
            return
        # With dropout, parts would draw other masks than the whole.
        graph = _C.ir.without_dropout(self.graph)
        before = random_states.of_torch(self.device)
        whole, _ = self.replay(graph, self.rows, self.batch)
        progress.advance(3, _RUNS)
        if not random_states.are_equal(before, random_states.of_torch(self.device)):
            self.report.skipped.append("row ranges apart, because the model draws random numbers")
            return
        # Unequal, so that a mean that is not weighted by rows shows.
        sizes = [2, self.rows - 2]
        if self.rows < 3:
            self.report.skipped.append(f"row ranges apart, of which {self.rows} rows make none")
            return
        try:
            batches = row_parts.parts_of(self.batch, self.layouts, sizes)
            parts = [outputs for outputs, _ in self.replay_parts(graph, sizes, batches)]
            joined = [
                row_parts.join([part[i] for part in parts], sizes, graph.values[value].rows)
                for i, value in enumerate(graph.outputs)
            ]
        except (RaNNCError, RuntimeError) as error:
            self.report.rows_interact = f"a part of the batch cannot run on its own: {error}"
            return
        names = [graph.values[value].name for value in graph.outputs]
        _, difference = compare.tensors(
            "outputs",
            dict(zip(names, whole, strict=True)),
            dict(zip(names, joined, strict=True)),
            self.tolerance,
        )
        if difference is None:
            _, difference = compare.tensors(
                "gradients", self.gradients(whole), self.gradients(joined), self.tolerance
            )
        if difference is None:
            self.report.rows_proved = True
        else:
            self.report.rows_interact = f"in parts of {sizes[0]} and {sizes[1]} rows, {difference}"


@contextlib.contextmanager
def _untouched(model, graph, device):
    """Puts buffers, attributes, random state and gradient hooks of the model back as they were, and
    leaves no cast of its weights behind.

    The model runs on its own parameters, not through ``torch.func.functional_call``: nn.LSTM keeps
    its weights in a list besides, which that does not replace.
    """
    homes = [
        (module._buffers, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    written = _C.ir.written_names(graph)
    kept = [(p, p.detach().clone()) for n, p in model.named_parameters() if n in written]
    # Hooks of the user change gradients and may count calls; they see the training steps only.
    hooks = [(p, p._backward_hooks) for p in model.parameters() if p._backward_hooks]
    with module_attributes.kept(model), random_states.kept(device):
        for parameter, _ in hooks:
            parameter._backward_hooks = None
        try:
            yield
        finally:
            # The caller's autocast has cached casts of the weights while the model ran: it holds
            # these weakly, and a tensor with weak references cannot be released.
            torch.clear_autocast_cache()
            with torch.no_grad():
                for owner, name, buffer, content in homes:
                    owner[name] = buffer
                    named_tensors.write(buffer, content)
                for parameter, content in kept:
                    parameter.copy_(content)
            for parameter, own in hooks:
                parameter._backward_hooks = own
