"""Random graphs and plans on the stand-in device, ranks as threads, against one process."""

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


def problem(seed, most_ranks=4):
    """A random graph, its outputs (the loss first), a plan, and rows of each rank."""
    choose = random.Random(seed)
    schedule = SCHEDULES[seed % 3]
    model = RandomGraph(seed)
    outputs = loss_first(model)
    ranks = choose.randint(2, most_ranks)
    local_rows = [choose.randint(0, 3) for _ in range(ranks)]
    local_rows[choose.randrange(ranks)] += choose.randint(1, 4)
    plan = random_plan(model.graph.node_names, ranks, seed, schedule)
    return model.graph, outputs, plan, local_rows


def run(seed, connect, steps=2, around=None, stream=None):
    """What differs between some steps of a random problem and one process: texts.

    Args:
        connect: Makes a communicator of ``(host's communicator, device)``.
        steps: Forward and backward; the batch is the same.
        around: ``around(executor, call_forward)`` runs before each step.
        stream: Makes what an executor takes for its device's order.
    """
    graph, outputs, plan, local_rows = problem(seed)
    total, state = sum(local_rows), graph.state(seed)
    inputs = make_tensors(graph.inputs, total, seed + 1)
    one = torch.ones((), dtype=torch.float64)
    zeros = [torch.zeros_like(each) for each in make_tensors(outputs, total)]
    values = run_directly(graph.text(outputs), state, inputs, total, zeros).outputs
    direct = run_directly(graph.text(outputs[:1]), state, inputs, total, [one])

    def one_rank(host):
        device = f"standin:{host.rank}"
        standin.set_device(host.rank)
        options = {} if stream is None else {"stream": stream()}
        executor = _C.runtime.Executor(
            _C.ir.parse(graph.text(outputs)),
            [],
            _C.plan.Plan.from_json(json.dumps(plan)),
            connect(host, device),
            device=device,
            outputs=_C.plan.Outputs.all,
            **options,
        )
        on_device = {name: tensor.to(device) for name, tensor in state.items()}
        own = rows_of_rank(host.rank, graph, inputs, local_rows)
        own = [tensor.to(device) for tensor in own]
        begin = sum(local_rows[: host.rank])
        end = begin + local_rows[host.rank]
        found = []
        for step in range(steps):
            parameters, buffers = local_state(executor, on_device)

            def forward(**options):
                return executor.forward(own, parameters, buffers, local_rows, **options)  # noqa: B023

            if around is not None:
                around(executor, forward)
            call = forward(with_backward=True)
            rows = [
                rows_of(each, value.rows, begin, end)
                for each, value in zip(values, outputs, strict=True)
            ]
            for value, ours, theirs in zip(outputs, call.outputs, rows, strict=True):
                if ours is not None:
                    found.append((f"rank {host.rank}, step {step}, {value}", ours.cpu(), theirs))
            gradients = call.backward([one.to(device)] + [None] * (len(outputs) - 1))
            for name, gradient in zip(executor.parameter_names, gradients, strict=False):
                what = f"rank {host.rank}, step {step}, gradient of {name}"
                gradient = None if gradient is None else gradient.cpu()
                found.append((what, gradient, direct.gradients[name]))
        return found

    found = [each for rank in run_ranks(len(local_rows), one_rank, 60.0) for each in rank]
    return [what for what, ours, theirs in found if not _equal(ours, theirs)]


def _equal(ours, theirs):
    if ours is None or theirs is None:  # a missing gradient may have travelled as zeros
        return all(each is None or not each.any() for each in (ours, theirs))
    return torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=False)
