"""Random graphs and plans on the stand-in device, ranks as threads, against one process."""

import dataclasses
import json
import random

import standin
import torch
from pipeline import (
    local_state,
    make_tensors,
    rows_of,
    rows_of_rank,
    run_directly,
    run_ranks,
)  # fmt: skip
from random_graphs import RandomGraph, loss_first, random_plan

from pyrannc import _C

SCHEDULES = ("gpipe", "1f1b", "interleaved")
TOLERANCE = 1e-10
ONE = torch.ones((), dtype=torch.float64)


@dataclasses.dataclass
class Problem:
    """A random graph, its outputs (the loss first), a plan, and rows of each rank."""

    seed: int
    graph: object
    outputs: list
    plan: dict
    local_rows: list

    @property
    def rows(self):
        return sum(self.local_rows)

    @property
    def text(self):
        return self.graph.text(self.outputs)

    @property
    def state(self):
        return self.graph.state(self.seed)

    @property
    def inputs(self):
        return make_tensors(self.graph.inputs, self.rows, self.seed + 1)


def problem(seed, ranks=None):
    """``ranks``: of the plan; 2 to 4 where none are given."""
    choose = random.Random(seed)
    schedule = SCHEDULES[seed % 3]
    model = RandomGraph(seed)
    outputs = loss_first(model)  # the plan has its nodes, too
    ranks = choose.randint(2, 4) if ranks is None else ranks
    local_rows = [choose.randint(0, 3) for _ in range(ranks)]
    local_rows[choose.randrange(ranks)] += choose.randint(1, 4)
    plan = random_plan(model.graph.node_names, ranks, seed, schedule)
    return Problem(seed, model.graph, outputs, plan, local_rows)


def one_process(made):
    """All outputs, and the gradients of the loss by name of parameter."""
    zeros = [torch.zeros_like(each) for each in make_tensors(made.outputs, made.rows)]
    values = run_directly(made.text, made.state, made.inputs, made.rows, zeros).outputs
    loss = made.graph.text(made.outputs[:1])
    return values, run_directly(loss, made.state, made.inputs, made.rows, [ONE]).gradients


def run(seed, connect, steps=2, around=None, stream=None, between=None):
    """What differs between some steps of a random problem and one process: texts.

    Args:
        connect: Makes a communicator of ``(host's communicator, device)``.
        steps, around, stream, between: see on_rank().
    """
    made = problem(seed)
    expected = one_process(made)

    def one_rank(host):
        device = f"standin:{host.rank}"
        standin.set_device(host.rank)
        comm = connect(host, device)
        return on_rank(made, expected, comm, device, steps, around, stream, between)

    found = [each for rank in run_ranks(len(made.local_rows), one_rank, 60.0) for each in rank]
    return [what for what, ours, theirs in found if not equal(ours, theirs)]


def on_rank(made, expected, comm, device, steps=2, around=None, stream=None, between=None):
    """What a rank finds, and one process: ``[(what, ours, theirs), ...]``, on the host.

    Args:
        steps: Forward and backward; the batch is the same.
        around: ``around(executor, call_forward)`` runs before each step.
        stream: Makes what the executor takes for its device's order.
        between: Runs between the forward and the backward of each step.
    """
    values, gradients_of_one = expected
    executor = _C.runtime.Executor(
        _C.ir.parse(made.text),
        [],
        _C.plan.Plan.from_json(json.dumps(made.plan)),
        comm,
        device=device,
        outputs=_C.plan.Outputs.all,
        **({} if stream is None else {"stream": stream()}),
    )
    on_device = {name: tensor.to(device) for name, tensor in made.state.items()}
    own = rows_of_rank(comm.rank, made.graph, made.inputs, made.local_rows)
    own = [tensor.to(device) for tensor in own]
    begin = sum(made.local_rows[: comm.rank])
    end = begin + made.local_rows[comm.rank]
    found = []
    for step in range(steps):
        parameters, buffers = local_state(executor, on_device)

        def forward(**options):
            return executor.forward(own, parameters, buffers, made.local_rows, **options)  # noqa: B023

        if around is not None:
            around(executor, forward)
        call = forward(with_backward=True)
        where = f"rank {comm.rank}, step {step}"
        for value, ours, theirs in zip(made.outputs, call.outputs, values, strict=True):
            if ours is not None:
                theirs = rows_of(theirs, value.rows, begin, end)
                found.append((f"{where}, {value}", ours.cpu(), theirs))
        if between is not None:
            between()
        gradients = call.backward([ONE.to(device)] + [None] * (len(made.outputs) - 1))
        for name, gradient in zip(executor.parameter_names, gradients, strict=False):
            gradient = None if gradient is None else gradient.cpu()
            found.append((f"{where}, gradient of {name}", gradient, gradients_of_one[name]))
    return found


def equal(ours, theirs):
    if ours is None or theirs is None:  # a missing gradient may have travelled as zeros
        return all(each is None or not each.any() for each in (ours, theirs))
    return torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=False)
