"""Over slow links a step takes what the simulator of the order of communication says."""

import json
import os
import time

import pytest
import standin
import torch
from graph_text import GraphText
from nccl import FILE
from pipeline import local_state, make_plan, run_ranks

from pyrannc import _C

pytestmark = [
    pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} was not built"),
    pytest.mark.usefixtures("nccl_environment"),
]
FORWARD_US, BACKWARD_US = 60_000, 120_000  # one to two, as a plan without predictions has it
MESSAGE_US = 30_000
FEATURES = 1000
ROWS, MICRO_BATCHES = 16, 4
RUNS = 8  # what disturbs a run makes it longer, never shorter
ONE = torch.ones((), dtype=torch.float64)


standin.make_slow_operator("standin_test", FORWARD_US, BACKWARD_US)


def problem(schedule, interleave):
    """The text of a graph of a stage for each of its nodes, and its plan for two ranks."""
    stages = 2 * interleave
    graph = GraphText()
    value = graph.input("x", ("B", FEATURES), grad=True)
    for _ in range(stages):
        value = graph.call("standin_test::slow", [value], ("B", FEATURES))
    text = graph.text([graph.mean(value)])
    plan = make_plan([], [[stage % 2] for stage in range(stages)], MICRO_BATCHES, False, schedule)
    for stage, node in zip(plan["stages"], graph.node_names, strict=False):
        stage["nodes"] = [node]
    plan["stages"][-1]["nodes"].append(graph.node_names[-1])
    if interleave > 1:
        plan["interleave"] = interleave
    return text, plan


def steps(text, plan):
    """Seconds of each of several steps of both ranks."""

    def one_rank(host):
        device = f"standin:{host.rank}"
        standin.set_device(host.rank)
        executor = _C.runtime.Executor(
            _C.ir.parse(text),
            [],
            _C.plan.Plan.from_json(json.dumps(plan)),
            _C.runtime.nccl(host, device, str(FILE)),
            device=device,
        )
        rows = [ROWS, 0]  # the first rank runs the first stage: nothing else has to travel
        inputs = [torch.ones(rows[host.rank], FEATURES, dtype=torch.float64, device=device)]
        inputs[0].requires_grad_()
        seconds = []
        for _ in range(RUNS):
            standin.synchronize(host.rank)
            host.barrier()
            begin = time.perf_counter()
            call = executor.forward(inputs, *local_state(executor, {}), rows, True)
            call.backward([ONE.to(device)])
            standin.synchronize(host.rank)
            host.barrier()
            seconds.append(time.perf_counter() - begin)
        return seconds

    return [max(pair) for pair in zip(*run_ranks(2, one_rank, 60.0), strict=True)]


@pytest.mark.all
@pytest.mark.parametrize(
    ("schedule", "interleave"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)]
)
def test_a_step_takes_what_the_simulator_says(schedule, interleave):
    standin.set_delay(0)
    bytes_of_message = ROWS // MICRO_BATCHES * FEATURES * 8
    os.environ["STANDIN_NCCL_BYTES_PER_S"] = str(1e6 * bytes_of_message / MESSAGE_US)
    text, plan = problem(schedule, interleave)
    made = _C.plan.Plan.from_json(json.dumps(plan))
    program = _C.plan.lower(made, _C.ir.parse(text), [ROWS, 0], True)
    stages = 2 * interleave
    simulation = _C.plan.simulate_in_order(
        program,
        _C.plan.Durations(
            forward_ns=[1000.0 * FORWARD_US] * stages,
            backward_ns=[1000.0 * BACKWARD_US] * stages,
            transfer_ns=[[1000.0 * MESSAGE_US] * stages] * stages,
        ),
    )
    expected = simulation.end_ns / 1e9
    taken = min(steps(text, plan))
    assert 0.99 * expected < taken < 1.1 * expected, (taken, expected)
