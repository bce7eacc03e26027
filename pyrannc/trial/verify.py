"""Before the first step, on request: a plan against one process, and recompute against none."""

import torch

from pyrannc import _C, log
from pyrannc.capture import random_states
from pyrannc.errors import PlanError
from pyrannc.ranks import first_fault, gathered, of_rank
from pyrannc.selfcheck import compare, row_parts
from pyrannc.state import named_tensors
from pyrannc.state.released import is_released


class Reference:
    """Outputs and gradients of the whole batch on rank 0 alone, without dropout. Collective.

    To be made before ranks let go of parts of the model, and held against the plan afterwards.

    Args:
        task: :class:`~pyrannc.running.task.Task`.
        call: Arguments and keyword arguments of the first call.
        local_rows: Of all ranks.
        plan: Whose schedule says whether there is a loss to start from.
    """

    def __init__(self, task, call, local_rows, plan):
        self._captured = task.captured.without_dropout()
        self._world, self._rows, self._plan = task.world, local_rows, plan
        mine = [each.detach().cpu() for each in self._captured.flatten(*call)]
        # Its message to rank 0, as to all, is as long as the batch.
        parts = gathered(self._world, mine)
        self._device = task.home  # of the one process; the plan runs on the task's
        whole = self._captured.whole
        values = [whole.values[value] for value in whole.inputs]
        self._mine = [
            each if value.on_host else each.to(task.device)
            for each, value in zip(parts[self._world.rank], values, strict=False)
        ]
        self.reason = _C.ir.why_shares_differ(self._captured.whole)
        if task.lacks_values:
            self.reason = "the model has no values before each rank holds its part"
        self._expected = None
        if self._world.rank == 0 and not self.reason:
            self._expected = self._on_one_process(task.model, parts)

    def _on_one_process(self, model, parts):
        whole = self._captured.whole
        values = [whole.values[value] for value in whole.inputs]
        joined = [
            row_parts.join(list(each), self._rows, value.rows)
            for each, value in zip(zip(*parts, strict=True), values, strict=True)
        ]
        inputs = [
            each if value.on_host else each.to(self._device)
            for each, value in zip(joined, values, strict=True)
        ]
        interpreter = _C.runtime.Interpreter(whole, self._captured.objects, str(self._device))
        state = _copies(model, interpreter.state_names())
        random = random_states.of_torch(self._device)
        with torch.enable_grad():
            outputs = interpreter.run(inputs, list(state.values()), sum(self._rows))
            if not random_states.are_equal(random, random_states.of_torch(self._device)):
                random_states.put(random, self._device)
                self.reason = "the model draws random numbers beside those of dropout"
                return None
            # As the executor weighs them: rows of all ranks by their share, one number as it is.
            terms = [
                output.sum() / (sum(self._rows) if _has_rows(whole.values[value]) else 1)
                for output, value in zip(outputs, whole.outputs, strict=True)
                if _counts(whole, value, self._plan) and output.requires_grad
            ]
            leaves = {name: leaf for name, leaf in state.items() if leaf.requires_grad}
            found = torch.autograd.grad(sum(terms), list(leaves.values()), allow_unused=True)
        gradients = {
            name: (torch.zeros_like(leaf) if gradient is None else gradient).detach().cpu()
            for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
        }
        return [output.detach().cpu() for output in outputs], gradients

    def compare(self, deployment) -> None:
        """Raises PlanError, on every rank, where the plan at work computes something else.

        Collective.
        """
        self.reason = of_rank(0, self._world, self.reason)
        if self.reason:
            if self._world.rank == 0:
                log.warn("deploy", f"verify_partitioning: nothing was compared, as {self.reason}")
            return
        outputs, gradients = of_rank(0, self._world, self._expected)
        graph = self._captured.graph
        call, held = _run(deployment, self._captured, deployment.plan, self._mine)
        found = call.outputs
        wanted = {}
        rank, rows = self._world.rank, self._rows
        for place, (output, value) in enumerate(zip(outputs, graph.outputs, strict=True)):
            layout = graph.values[value].rows
            if found[place] is None or layout.kind == "mixed":
                continue
            if layout.kind == "apart":
                index = torch.arange(sum(rows[:rank]), sum(rows[: rank + 1]))
                output = row_parts.take(output, layout, index)
            wanted[place] = output
        allowed = compare.tolerance(graph)
        _, fault = compare.tensors(
            "outputs",
            {f"output {place}": output for place, output in wanted.items()},
            {f"output {place}": found[place].detach().cpu() for place in wanted},
            allowed,
        )
        if fault is None and deployment.model.training:
            mine = _gradients(call, held, self._plan, graph, rows[rank])
            _, fault = compare.tensors(
                "gradients", {name: gradients[name] for name in mine}, mine, allowed
            )
        _tell(self._world, fault, "verify_partitioning: the plan does not compute what one process")
        if rank == 0:
            log.info("deploy", f"verify_partitioning: outputs and gradients within {allowed:.0e}")


def recompute(deployment, inputs) -> None:
    """Raises PlanError, on every rank, where a training call whose stages run again in their
    backward gives other gradients than one whose stages do not. Collective.
    """
    plan, world = deployment.plan, deployment.world
    recomputes = any(stage.recompute for stage in plan.stages)
    if not recomputes or not deployment.model.training:
        if world.rank == 0:
            log.warn("deploy", "verify_recomp: no stage of the plan runs its forward again")
        return
    without = _C.plan.without_recompute(plan)
    captured, device = deployment.task.captured, deployment.task.device
    random = random_states.of_torch(device)
    found = []
    for each in (without, plan):
        random_states.put(random, device)
        call, held = _run(deployment, captured, each, [tensor.detach() for tensor in inputs])
        found.append(
            _gradients(call, held, each, captured.graph, deployment.local_rows[world.rank])
        )
    random_states.put(random, device)
    allowed = compare.tolerance(captured.graph)
    error, fault = compare.tensors("gradients", *found, allowed)
    _tell(world, fault, "verify_recomp: gradients are not as without recompute")
    if world.rank == 0:
        log.info("deploy", f"verify_recomp: gradients with recompute within {error:.1e}")


def _run(deployment, captured, plan, inputs):
    """A call under ``plan``, and the parameters on this rank by name. Nothing stays changed."""
    executor = deployment.executor(captured, plan)
    held = _copies(deployment.model, executor.parameter_names)
    buffers = _copies(deployment.model, executor.buffer_names)
    with torch.no_grad():
        call = executor.forward(
            inputs,
            list(held.values()),
            list(buffers.values()),
            deployment.local_rows,
            deployment.model.training,
        )
    return call, held


def _copies(model, names):
    tensors = named_tensors.tensors(model)
    return {
        name: tensors[name].detach().clone().requires_grad_(tensors[name].requires_grad)
        for name in names
        if not is_released(tensors[name])
    }


def _gradients(call, held, plan, graph, rows):
    """Of the parameters on this rank, as if the loss were what :class:`Reference` takes."""
    seeds = [
        torch.full_like(output, 1 / rows if _has_rows(graph.values[value]) and rows else 1)
        if output is not None and _counts(graph, value, plan)
        else None
        for output, value in zip(call.outputs, graph.outputs, strict=True)
    ]
    found = call.backward(seeds)
    return {
        name: (torch.zeros_like(parameter) if gradient is None else gradient).detach().cpu()
        for (name, parameter), gradient in zip(held.items(), found, strict=False)
        if parameter.requires_grad
    }


def _has_rows(value):
    return value.rows.kind == "apart"


def _counts(graph, value, plan):
    """Whether an output is part of that loss."""
    if _C.plan.backward_comes_first(plan):
        return value == _C.plan.loss_of(graph)
    content = graph.values[value]
    return content.requires_grad and content.rows.kind in ("apart", "mean", "sum")


def _tell(world, fault, what):
    if wrong := first_fault(world, str(fault or "")):
        raise PlanError("{} does: rank {}, {}".format(what, *wrong))
