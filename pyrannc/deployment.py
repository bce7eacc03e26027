"""A plan at work on this rank, and the runs of its captures."""

import functools
import json
import operator

import torch

from pyrannc import (
    _C,
    calibrate,
    chained,
    hooks,
    log,
    optim,
    optimizer_trial,
    schedules,
    shared_memory,
    state,
)
from pyrannc.agreement import same_graph
from pyrannc.borrowing import Borrowing
from pyrannc.errors import PlanError, RaNNCError
from pyrannc.not_returned import NotReturned
from pyrannc.steps import Steps
from pyrannc.turns import Turns
from pyrannc.unsummed import Unsummed


def draw_steps(world):
    """Of random numbers that do not depend on the plan: the seed of rank 0's generator, and step 0.

    Collective.
    """
    seed = world.broadcast(str(torch.initial_seed()).encode(), 0).decode()
    return _C.runtime.DrawSteps(int(seed) % 2**64)


class Deployment:
    """A plan at work: who holds which tensors, and one :class:`Run` for each capture."""

    def __init__(
        self,
        model,
        optimizer,
        captured,
        plan,
        bucket_bytes,
        local_rows,
        config,
        world,
        outputs,
        outside_loss,
    ):
        self.model, self.plan, self.world = model, plan, world
        self.local_rows = local_rows  # of the first call
        self._planned_rows = json.loads(plan.notes or "{}").get("global_batch", sum(local_rows))
        self._noted = set()
        self.unsummed = Unsummed(self)
        self.owners = state.Owners(world, model)
        self.turns = Turns(world, self.unsummed.kept, self.owners.peers)
        self._bucket_bytes = bucket_bytes
        self._outputs = outputs
        self._config = config
        self._outside_loss = outside_loss
        self._planned = captured
        self.draws = draw_steps(world) if config.deterministic_dropout else None
        self.steps = Steps(self, optimizer)
        self.speed = None  # speed.Speed, of a plan that settle() has measured
        self._optimizer = optimizer
        self.first = Run(self, captured, self._executor(captured, plan))

    def replan(self, plan) -> None:
        """Before the first step: takes ``plan``; after hold() its stages and ranks must be those of
        the plan at work."""
        self._bucket_bytes = json.loads(plan.notes)["bucket_bytes"]
        executor = self._executor(self._planned, plan)
        self.plan = plan
        self.first = Run(self, self._planned, executor)

    def hold(self) -> None:
        """From here on every rank holds, and its optimizer steps, what its stages use; the rest of
        the model is freed. Collective, once, before the first step."""
        executor = self.first.executor
        used = {*executor.parameter_names, *executor.buffer_names}
        shared = self._sharing_memory() if self.world.size > 1 else []
        self.owners.assign(used, shared)
        if self._optimizer is not None:
            held = {id(p) for p in self.model.parameters() if not p.is_meta}
            optim.keep_local(self._optimizer, held)

    def _sharing_memory(self):
        """Tensors of which the optimizer or forward() changes one and with it the other."""
        held = state.tensors(self.model)
        written = state.written(self._planned.graph)
        changing = {n: t for n, t in held.items() if t.requires_grad or n in written}
        used = set(map(id, self._planned.objects))
        constants = {
            f"{path}.{name}" if path else name: value
            for path, module in self.model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor) and id(value) in used
        }
        return shared_memory.pairs(changing, held | constants)

    def calibrate(self, inputs, optimizer, patience=calibrate.FIRST) -> dict:
        """What the plan's actions, and a step of ``optimizer`` (or None), take on ``inputs``; empty
        for a model that does not train."""
        program = _C.plan.lower(
            self.plan, self._planned.graph, self.local_rows, True, self._outputs
        )
        return self.first.calibrate(inputs, program, optimizer, patience)

    def run_of(self, captured):
        """The run of another capture of the model: its nodes go to the stages of the plan."""
        same_graph(captured, 1, self.world)
        plan = _C.plan.map_to(self.plan, self._planned.graph, captured.graph)
        executor = self._executor(captured, plan)
        users = self.owners.users({*executor.parameter_names, *executor.buffer_names})
        self.owners.move_unused(users, self._move_in_optimizer)
        elsewhere = {
            name: ranks for name, ranks in users.items() if ranks != self.owners.ranks[name]
        }
        if elsewhere:
            parameters = dict(self.model.named_parameters(remove_duplicate=False))
            holders = {name: self.owners.ranks[name] for name in elsewhere if name in parameters}
            executor = self._executor(captured, plan, holders)
        return Run(self, captured, executor, elsewhere)

    def _move_in_optimizer(self, tensor, root, ranks):
        if self._optimizer is not None and isinstance(tensor, torch.nn.Parameter):
            optim.move(self._optimizer, tensor, self.world, root, ranks)

    def note_batch(self, local_rows):
        """Says once that a batch is larger than planned, and once that one is of another size."""
        rows = sum(local_rows)
        if self.world.rank != 0:
            return
        if rows > self._planned_rows and "larger" not in self._noted:
            self._noted.add("larger")
            log.warn(
                "deploy",
                f"a batch has {rows} rows on all ranks together, but the plan was made for "
                f"{self._planned_rows}: it may not fit in memory. Make the first batch the largest",
            )
        elif rows < self._planned_rows and "smaller" not in self._noted:
            self._noted.add("smaller")
            log.info(
                "deploy",
                f"a batch has {rows} rows on all ranks together, the plan was made for "
                f"{self._planned_rows} and stays",
            )

    def backward(self, call, turn, numbers, gradients, keep_graph, run):
        """Around ``run()``, the backward of a call of the executor; ``numbers``: see Scales.add().

        ``gradients`` are those of the call's outputs.
        """
        if torch.is_grad_enabled():
            raise RaNNCError(
                "backward(create_graph=True) through a RaNNCModule is not possible: second "
                "derivatives would have to run the pipeline again"
            )
        self.turns.scales.add(turn.number, numbers, gradients)
        communicates = call.communicates
        if communicates:
            self.turns.backward(turn.number, keep_graph)
        with self.steps.backward():
            run()
        if communicates and not turn.no_sync:
            self.unsummed.add_to_gradients()  # of parameters that this call does not have

    def _executor(self, captured, plan, holders=None):
        return _C.runtime.Executor(
            captured.graph,
            captured.objects,
            plan,
            self.world,
            preludes=captured.preludes,
            outside_sum=self._outside_loss == "sum",
            outputs=self._outputs,
            draws=self.draws,
            kept=self.unsummed.kept,
            bucket_bytes=self._bucket_bytes,
            holders=holders or {},
        )

    def clip_grad_norm(self, max_norm: float) -> float:
        """Each parameter counts once over all ranks, however many hold it."""
        self.unsummed.check("clip_grad_norm()")
        self.turns.other("clip_grad_norm()")
        with torch.no_grad():
            held = [
                (parameter.grad, len(self.owners.ranks[name]))
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None
            ]
            squares = sum(
                (_square(gradient) / holders for gradient, holders in held),
                start=torch.zeros((), dtype=torch.float64),
            ).reshape(1)
            self.world.all_reduce_sum(squares.numpy(), list(range(self.world.size)))
            norm = squares.sqrt().item()
            scale = max_norm / (norm + 1e-6)
            if not scale >= 1:  # a norm that is not a number makes all of them so, as in torch
                for gradient, _ in held:
                    gradient.mul_(scale)
        return norm


def _square(gradient):
    """Of its norm, in float64."""
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    return torch.linalg.vector_norm(gradient, dtype=wide).square()


def value_is_number(value):
    """Whether it is one number of the whole batch, such as a loss."""
    return value.rows.kind in ("mean", "sum") and not value.dims


class Run:
    """One capture of the model with its executor.

    Args:
        users: The ranks whose stages use a tensor, by its name, where they are not its owners.
    """

    def __init__(self, deployment, captured, executor, users=()):
        self.capture, self.executor, self._deployment = captured, executor, deployment
        places = state.places(deployment.model)
        self._parameter_places = [places[name] for name in executor.parameter_names]
        self._buffer_places = [places[name] for name in executor.buffer_names]
        self._parameters = self._buffers = None
        self._find_state()
        tensors = state.tensors(deployment.model)
        graph = captured.graph
        written = state.written(graph)
        self._borrowing = Borrowing(deployment, executor, users, written) if users else None
        self._written = [tensors[name] for name in executor.parameter_names if name in written]
        self._differentiable = [graph.values[value].requires_grad for value in graph.outputs]
        self._trains = any(value.requires_grad for value in graph.values)
        self._inputs_checked = deployment.world.size == 1
        self._weighs_gradients = (
            deployment.world.size > 1
            and deployment._outside_loss == "mean"
            and any(graph.values[v].dims and graph.values[v].requires_grad for v in graph.outputs)
        )
        self._has_half = any(value.dtype == "float16" for value in graph.values)
        plan, training = deployment.plan, deployment.model.training
        if training and self._trains and not schedules.can_train(plan, graph):
            raise PlanError(
                f"the plan has schedule '{plan.schedule}', but this call, unlike the first one, "
                "returns no loss to start the backward from: return it, or call eval() first"
            )
        # Its graph may have no loss, and every output is wanted.
        self._forward_only = _C.plan.backward_comes_first(plan) and not training
        paths = captured.output_paths()
        self._not_returned = [
            NotReturned(path, plan.schedule, _C.plan.can_be_dealt_out(graph.values[value]))
            for path, value in zip(paths, graph.outputs, strict=True)
        ]
        first = {value: path for path, value in reversed([*zip(paths, graph.outputs, strict=True)])}
        self._numbers = [
            first[value] if value_is_number(graph.values[value]) else None
            for value in graph.outputs
        ]

    def _find_state(self):
        """The tensors that the modules hold now: the user may have put others in their places."""
        self._buffers = [registry[name] for registry, name in self._buffer_places]
        parameters = [registry[name] for registry, name in self._parameter_places]
        if self._parameters is not None and all(map(operator.is_, parameters, self._parameters)):
            return
        self._parameters = parameters
        # Autograd makes these anew in each step unless somebody holds them.
        self._accumulators = [
            torch.autograd.graph.get_gradient_edge(parameter).node
            for parameter in parameters
            if parameter.requires_grad and not parameter.is_meta
        ]

    def calibrate(self, inputs, program, optimizer, patience) -> dict:
        if not self._trains:
            return {}
        wanted = self._differentiable
        if _C.plan.backward_comes_first(self._deployment.plan):  # from the loss only
            loss = _C.plan.loss_of(self.capture.graph)
            wanted = [value == loss for value in self.capture.graph.outputs]
        return calibrate.measure(
            self.executor,
            ([tensor.detach() for tensor in inputs], self._parameters, self._buffers),
            wanted,
            program,
            self._deployment.local_rows,
            self._deployment.world,
            optimizer and optimizer_trial.StepBesideRuns(optimizer, self._parameters),
            patience,
            self._written,
        )

    def step(self, inputs, turn):
        """Runs forward (and, from the user's ``backward``, the rest); returns the outputs."""
        deployment = self._deployment
        as_planned = self is deployment.first and turn.local_rows == deployment.local_rows
        self._find_state()
        tracked = self._trains and torch.is_grad_enabled()
        with_backward = tracked and not self._forward_only
        parameters, buffers = self._parameters, self._buffers
        with deployment.steps.forward(with_backward, as_planned):
            if self._borrowing:
                parameters, buffers = self._borrowing.begin(parameters, buffers)
            call = self.executor.forward(
                [tensor.detach() for tensor in inputs],
                [
                    parameter.detach() if not with_backward else parameter
                    for parameter in parameters
                ],
                buffers,
                turn.local_rows,
                with_backward,
                turn.no_sync,
                turn.loss_seed if self._has_half else 1.0,
            )
            if self._borrowing:
                self._borrowing.end(parameters, buffers)
        if not tracked:
            return self._with_places(call.outputs)
        if self._deployment.draws is not None:
            self._deployment.draws.step += 1
        if not self._inputs_checked and any(tensor.grad_fn is not None for tensor in inputs):
            chained.refuse_marked(inputs)
            self._inputs_checked = True  # others of the kind come from the same code
        hooks.only_with_gradient(inputs)
        outputs = _C.runtime.join_autograd(
            call,
            [*parameters, *inputs],
            self._differentiable,
            functools.partial(self._backward, call, turn),
        )
        if self._weighs_gradients:
            chained.mark(outputs)
        return self._with_places(outputs)

    def _with_places(self, outputs) -> list:
        """The outputs, and something that says so in place of those that were not sent."""
        return [
            place if output is None else output
            for output, place in zip(outputs, self._not_returned, strict=True)
        ]

    def _backward(self, call, turn, *arguments):
        hooks.only_with_gradient(self._parameters)
        self._deployment.backward(call, turn, self._numbers, *arguments)
