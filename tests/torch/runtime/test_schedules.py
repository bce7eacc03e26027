"""Training under every schedule against direct execution: random graphs and plans, rank threads."""

import json
import random

import pytest
import torch
from direct import check
from graph_text import GraphText
from pipeline import (
    local_state,
    make_tensors,
    rows_of,
    rows_of_rank,
    run_directly,
    run_ranks,
)
from random_graphs import RandomGraph, loss_first, random_plan

from pyrannc import _C

SCHEDULES = ["gpipe", "1f1b", "interleaved"]


def make_executor(text, plan, communicator, outputs="all"):
    return _C.runtime.Executor(
        _C.ir.parse(text),
        [],
        _C.plan.Plan.from_json(json.dumps(plan)),
        communicator,
        outputs=getattr(_C.plan.Outputs, outputs),
    )


def assert_close(actual, expected, what):
    if expected is None or actual is None:  # a missing gradient may have travelled as zeros
        assert all(t is None or not t.any() for t in (actual, expected)), what
        return
    torch.testing.assert_close(
        actual, expected, rtol=1e-10, atol=1e-10, msg=lambda m: f"{what}: {m}"
    )


def check_loss(graph, outputs, plan, local_rows, seed, returned="all"):
    """Loss, outputs, gradients of parameters and inputs times a factor, as often as is asked."""
    total, state = sum(local_rows), graph.state(seed)
    inputs = make_tensors(graph.inputs, total, seed + 1)
    factors = [torch.tensor(number, dtype=torch.float64) for number in (1.5, -0.5, 1.0)]
    zeros = [torch.zeros_like(tensor) for tensor in make_tensors(outputs, total)]
    values = run_directly(graph.text(outputs), state, inputs, total, zeros).outputs
    one = torch.ones((), dtype=torch.float64)
    direct = run_directly(graph.text(outputs[:1]), state, inputs, total, [one])
    parsed = _C.ir.parse(graph.text(outputs))
    takes_gradient = [parsed.values[value].requires_grad for value in parsed.inputs]

    def one_rank(communicator):
        rank = communicator.rank
        begin = sum(local_rows[:rank])
        end = begin + local_rows[rank]
        executor = make_executor(graph.text(outputs), plan, communicator, returned)
        parameters, buffers = local_state(executor, state)
        own = rows_of_rank(rank, graph, inputs, local_rows)
        call = executor.forward(
            own, parameters, buffers, local_rows, True, loss_seed=2.0 ** (seed % 4)
        )
        given = call.outputs
        assert_close(given[0], values[0], f"rank {rank}, loss")
        for value, ours, theirs in zip(outputs[1:], given[1:], values[1:], strict=True):
            if returned == "all":
                assert_close(ours, rows_of(theirs, value.rows, begin, end), f"rank {rank}, {value}")
            else:
                assert ours is None, value
        missing = [None] * (len(outputs) - 1)
        for index, factor in enumerate(factors):
            keep = index + 1 < len(factors)
            gradients = call.backward([factor, *missing], keep)
            for name, gradient in zip(executor.parameter_names, gradients, strict=False):
                expected = direct.gradients[name]
                expected = expected if expected is None else factor * expected
                assert_close(gradient, expected, f"rank {rank}, gradient {index} of {name}")
            for value, wanted, gradient, expected in zip(
                graph.inputs,
                takes_gradient,
                gradients[len(parameters) :],
                direct.input_gradients,
                strict=True,
            ):
                if not wanted:
                    assert gradient is None, value
                    continue
                if begin == end:  # zeros of no rows, where there is one
                    assert gradient is None or not gradient.numel(), value
                    continue
                if expected is not None:
                    expected = factor * rows_of(expected, value.rows, begin, end)
                assert_close(gradient, expected, f"rank {rank}, gradient {index} of {value}")
        with pytest.raises(_C.util.RaNNCError, match="backward was called twice"):
            call.backward([factors[0], *missing])
        return set(executor.parameter_names)

    held = set().union(*run_ranks(len(local_rows), one_rank))
    assert held >= {name for name, gradient in direct.gradients.items() if gradient is not None}


def run_seeds(seeds):
    for seed in seeds:
        choose = random.Random(seed)
        schedule = SCHEDULES[seed % 3]
        model = RandomGraph(seed)
        outputs = model.outputs if schedule == "gpipe" else loss_first(model)
        ranks = choose.randint(2 if schedule == "interleaved" else 1, 5)
        local_rows = [choose.randint(0, 3) for _ in range(ranks)]
        local_rows[choose.randrange(ranks)] += choose.randint(1, 4)
        plan = random_plan(model.graph.node_names, ranks, seed, schedule)
        returned = choose.choice(["loss", "all"])
        try:
            if schedule == "gpipe":
                check(model.graph, outputs, plan, local_rows, seed)
            else:
                check_loss(model.graph, outputs, plan, local_rows, seed, returned)
        except Exception as error:
            text = model.graph.text(outputs)
            error.add_note(f"seed {seed}, {returned}, local rows {local_rows}, plan {plan}\n{text}")
            raise


def test_three_hundred_random_plans_of_random_graphs_equal_direct_execution():
    run_seeds(range(300))


@pytest.mark.all
@pytest.mark.parametrize("hundred", range(100))
def test_ten_thousand_random_plans_of_random_graphs_equal_direct_execution(hundred):
    run_seeds(range(100 * hundred, 100 * hundred + 100))


def test_an_output_beside_the_loss_is_not_kept():
    graph = GraphText()
    weight = graph.parameter("weight", (512,))
    h = graph.call("aten::mul.Tensor", [graph.input("x", ("B", 512)), weight], ("B", 512))
    h = graph.call("aten::tanh", [h], h.sizes)
    outputs = [graph.mean(h), h]
    plan = {
        "format": "rannc-plan",
        "version": 1,
        "schedule": "1f1b",
        "micro_batches": 16,
        "stages": [{"nodes": graph.node_names, "ranks": [0], "recompute": False}],
    }
    x, state = make_tensors(graph.inputs, 64), graph.state()
    peaks = {}
    for returned in ("loss", "all"):
        communicator = _C.comm.make_local(1)[0]
        executor = make_executor(graph.text(outputs), plan, communicator, returned)
        parameters, buffers = local_state(executor, state)
        with _C.runtime.MemoryRecorder() as memory:
            call = executor.forward(x, parameters, buffers, [64], True)
        assert (call.outputs[1] is None) == (returned == "loss")
        peaks[returned] = memory.peak_bytes
    # 64 rows of the output are 64 * 512 * 8 bytes; a micro-batch holds a sixteenth.
    assert peaks["all"] > peaks["loss"] + 64 * 512 * 8 * 3 // 4
