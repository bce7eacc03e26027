"""One captured call of a deployment, run on this rank."""

import functools
import operator

import torch

from pyrannc import _C
from pyrannc.errors import PlanError
from pyrannc.optimizer import steps_on_copies
from pyrannc.planning import schedules
from pyrannc.running import chained_models, gradient_hooks
from pyrannc.running.borrowed_tensors import BorrowedTensors
from pyrannc.running.unsent_output import UnsentOutput
from pyrannc.state import named_tensors, torch_private
from pyrannc.state.released import is_released
from pyrannc.trial import measured_runs


def value_is_number(value):
    """Whether it is one number of the whole batch, such as a loss."""
    return value.rows.kind in ("mean", "sum") and not value.dims


class Run:
    """One capture of the model with its executor.

    Args:
        plan: Of the executor: the deployment's, or one for the whole batch at once.
        users: The ranks whose stages use a tensor, by its name, where they are not its owners.
    """

    def __init__(self, deployment, captured, executor, plan, users=()):
        self.capture, self.executor, self._deployment = captured, executor, deployment
        places = named_tensors.places(deployment.model)
        self._parameter_places = [places[name] for name in executor.parameter_names]
        self._buffer_places = [places[name] for name in executor.buffer_names]
        self._parameters = self._buffers = None
        self._find_state()
        tensors = named_tensors.tensors(deployment.model)
        graph = captured.graph
        written = _C.ir.written_names(graph)
        self._borrowing = BorrowedTensors(deployment, executor, users, written) if users else None
        self._written = [tensors[name] for name in executor.parameter_names if name in written]
        self._differentiable = [graph.values[value].requires_grad for value in graph.outputs]
        self._trains = _C.ir.requires_grad(graph)
        self._inputs_with_rows = captured.inputs_with_rows()
        self._weighs_gradients = (
            deployment.world.size > 1
            and deployment.task.outside_loss == "mean"
            and any(graph.values[v].dims and graph.values[v].requires_grad for v in graph.outputs)
        )
        self._has_half = "float16" in _C.ir.dtypes(graph)
        self._plan, training = plan, deployment.model.training
        lacks_loss = not schedules.can_train(plan, graph)
        self._cannot_train = training and self._trains and lacks_loss
        # Its graph may have no loss, and every output is wanted.
        self._forward_only = _C.plan.backward_comes_first(plan) and (not training or lacks_loss)
        paths = captured.output_paths()
        self._not_returned = [
            UnsentOutput(path, plan.schedule, _C.plan.can_be_dealt_out(graph.values[value]))
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
        with torch_private.without_subclasses():
            self._accumulators = [
                torch.autograd.graph.get_gradient_edge(parameter).node
                for parameter in parameters
                if parameter.requires_grad and not is_released(parameter)
            ]

    def forget_tensors(self):
        """They have been moved: autograd has others of its nodes for them."""
        self._parameters, self._accumulators = None, ()
        self._find_state()

    def calibrate(self, inputs, program, optimizers, patience):
        if not self._trains:
            return None
        parameters, buffers, written = self._on_device()
        wanted = self._differentiable
        if _C.plan.backward_comes_first(self._deployment.plan):  # from the loss only
            loss = _C.plan.loss_of(self.capture.graph)
            wanted = [value == loss for value in self.capture.graph.outputs]
        return measured_runs.measure(
            self.executor,
            ([tensor.detach() for tensor in inputs], parameters, buffers),
            wanted,
            program,
            self._deployment.local_rows,
            self._deployment.world,
            steps_on_copies.StepBesideRuns(
                optimizers,
                self._parameters,
                self._deployment.task.device,
                self._deployment.optimizer_share(),
                self._deployment.task.master_weights,
            )
            if optimizers
            else None,
            patience,
            written,
            self._deployment.task.device,
        )

    def _on_device(self):
        """Parameters, buffers, and what is written of the parameters: those of the model, or copies
        of this plan's part where the model is not on the device yet."""
        device = self._deployment.task.device
        if self._deployment.task.home == device or self._deployment.holds:
            return self._parameters, self._buffers, self._written
        copies = {
            id(tensor): tensor.detach().to(device).requires_grad_(tensor.requires_grad)
            for tensor in (*self._parameters, *self._buffers)
        }
        lists = self._parameters, self._buffers, self._written
        return tuple([copies[id(tensor)] for tensor in tensors] for tensors in lists)

    def step(self, inputs, turn):
        """Runs forward (and, from the user's ``backward``, the rest); returns the outputs."""
        deployment = self._deployment
        as_planned = self is deployment.first and turn.local_rows == deployment.local_rows
        self._find_state()
        tracked = self._trains and torch.is_grad_enabled()
        if tracked and self._cannot_train:
            raise PlanError(
                f"the plan has schedule '{self._plan.schedule}', but this call, unlike the "
                "first one, returns no loss to start the backward from: return it, or call eval() "
                "or torch.no_grad() first"
            )
        with_backward = tracked and not self._forward_only
        parameters, buffers = self._parameters, self._buffers
        with deployment.steps.forward(with_backward, as_planned), deployment.shown():
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
        if deployment.task.config.wrap_hooks:
            gradient_hooks.only_with_gradient(inputs)
        if deployment.world.size > 1:
            inputs = chained_models.unweighed(inputs, self._inputs_with_rows)
        outputs = _C.runtime.join_autograd(
            call,
            [*parameters, *inputs],
            self._differentiable,
            functools.partial(self._backward, call, turn),
        )
        if self._weighs_gradients:
            own = turn.local_rows[deployment.world.rank]
            chained_models.mark(outputs, own / sum(turn.local_rows))
        return self._with_places(outputs)

    def _with_places(self, outputs) -> list:
        """The outputs, and something that says so in place of those that were not sent."""
        found = [
            place if output is None else output
            for output, place in zip(outputs, self._not_returned, strict=True)
        ]
        deployment = self._deployment
        self.capture.put_numbers(deployment.model, found, deployment.world.rank == 0)
        return found

    def _backward(self, call, turn, *arguments):
        if self._deployment.task.config.wrap_hooks:
            gradient_hooks.only_with_gradient(self._parameters)
        self._deployment.backward(call, turn, self._numbers, *arguments)
