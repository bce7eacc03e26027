"""The executor's own timeline: what it writes down, and that it agrees with the simulator."""

import itertools
import json
import time

import pytest
import torch
from pipeline import run_ranks

from pyrannc import _C

FORWARD_S, BACKWARD_S = 0.01, 0.02


class Rest(torch.autograd.Function):
    """Takes its time without needing a core, so other load on the machine hardly matters."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_S)
        return gradient.clone()


GRAPH = """graph g(%x) -> (%loss)
  input x: float32[B] apart(0) grad
  node n0 = Rest(%x) -> %a python #0
    result a: float32[B] apart(0) grad
  node n1 = Rest(%a) -> %b python #0
    result b: float32[B] apart(0) grad
  node n2 = aten::mean(%b, none) -> %loss
    result loss: float32[] mean grad
"""
PLAN = {
    "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 4,
    "stages": [
        {"nodes": ["n0"], "ranks": [0], "recompute": False},
        {"nodes": ["n1", "n2"], "ranks": [1], "recompute": False},
    ],
}  # fmt: skip
LOCAL_ROWS = [2, 2]


def executor_on(communicator):
    return _C.runtime.Executor(
        _C.ir.parse(GRAPH),
        [Rest.apply],
        _C.plan.Plan.from_json(json.dumps(PLAN)),
        communicator,
    )


def program():
    plan = _C.plan.Plan.from_json(json.dumps(PLAN))
    return _C.plan.lower(plan, _C.ir.parse(GRAPH), LOCAL_ROWS, True)


def step(executor, with_backward=True):
    call = executor.forward([torch.ones(2)], [], [], LOCAL_ROWS, with_backward)
    if with_backward:
        call.backward([torch.ones(())])


def test_a_timeline_has_every_action_once_in_order_and_without_gaps():
    def one_rank(communicator):
        executor = executor_on(communicator)
        step(executor)
        step(executor, with_backward=False)  # leaves no trace
        return executor.timeline, json.loads(program().to_json())["actions"][communicator.rank]

    for spans, actions in run_ranks(2, one_rank):
        returns = next(i for i, action in enumerate(actions) if action[0] == "return_outputs")
        # Each phase ends with -1, when all its messages are sent.
        expected = [*range(returns), -1, *range(returns + 1, len(actions)), -1]
        assert [span.action for span in spans] == expected
        assert all(0 <= span.cpu_ns <= span.end_ns - span.begin_ns for span in spans)
        for before, after in itertools.pairwise(spans):
            assert before.end_ns == after.begin_ns or before.action == -1
        for span in spans:
            least = {"forward": FORWARD_S, "backward": BACKWARD_S}
            if span.action >= 0 and actions[span.action][0] in least:
                assert span.end_ns - span.begin_ns >= 1e9 * least[actions[span.action][0]]


def test_ranks_idle_as_long_as_the_simulator_says():
    def one_rank(communicator):
        executor = executor_on(communicator)
        step(executor)
        steps = []
        for _ in range(16):
            before, begin = executor.times.idle_ns, time.monotonic_ns()
            step(executor)
            passed = time.monotonic_ns() - begin
            steps.append((passed, (executor.times.idle_ns - before) / passed))
        return min(steps)[1]  # of the step that the machine disturbed least

    durations = _C.plan.Durations(
        forward_ns=[1e9 * FORWARD_S] * 2,
        backward_ns=[1e9 * BACKWARD_S] * 2,
        transfer_ns=[[0.0, 0.0], [0.0, 0.0]],
    )
    end_ns = _C.plan.simulate(program(), durations).end_ns
    # 4 micro-batches of 30 ms each, and one more for the way through the other stage.
    bubble = 1 - 4 * 1e9 * (FORWARD_S + BACKWARD_S) / end_ns
    assert bubble == pytest.approx(0.2)
    for idle in run_ranks(2, one_rank):
        assert idle == pytest.approx(bubble, abs=0.1)
