"""Plans of two ranks, each a thread with a stand-in device of its own, against one process.

Their messages and sums go through pinned memory of the host. What a missing step of that does is
tried, too: a suite that cannot see it would prove nothing.
"""

import json

import pytest
import standin
import torch
from graph_text import GraphText
from pipeline import local_state, make_plan, make_tensors, rows_of_rank, run_directly, run_ranks

from pyrannc import _C

LOCAL_ROWS = [5, 3]
LOSS_GRADIENT = torch.tensor(0.25, dtype=torch.float64)
PLANS = {
    "replicas": ([[0, 1]], "gpipe"),
    "gpipe": ([[0], [1]], "gpipe"),
    "1f1b": ([[0], [1]], "1f1b"),
    "interleaved": ([[0], [1], [0], [1]], "interleaved"),
}


def run(name, streams=None):
    """The largest error of losses and gradients of all ranks; NaN counts as infinite.

    ``streams``: makes what each executor takes for its device's order.
    """
    ranks, schedule = PLANS[name]
    graph = GraphText()
    h = graph.input("x", ("B", 6))
    for layer in range(4):
        h = graph.linear(h, f"layer{layer}", 6)
    text = graph.text([graph.mean(h)])
    plan = make_plan(graph.node_names, ranks, 4, schedule=schedule)
    plan["interleave"] = max(len(ranks) // 2, 1)
    plan = _C.plan.Plan.from_json(json.dumps(plan))
    state, x = graph.state(), make_tensors(graph.inputs, sum(LOCAL_ROWS))
    standin.keep_to(1, 2)

    def one_rank(communicator):
        index = communicator.rank + 1
        device = f"standin:{index}"
        standin.set_device(index)
        options = {} if streams is None else {"stream": streams()}
        executor = _C.runtime.Executor(
            _C.ir.parse(text),
            [],
            plan,
            _C.runtime.staged(communicator, device),
            device=device,
            **options,
        )
        on_device = {name: tensor.to(device) for name, tensor in state.items()}
        parameters, buffers = local_state(executor, on_device)
        own = [
            tensor.to(device) for tensor in rows_of_rank(communicator.rank, graph, x, LOCAL_ROWS)
        ]
        standin.clear_counts()
        call = executor.forward(own, parameters, buffers, LOCAL_ROWS, True)
        loss = call.outputs[0]
        gradients = call.backward([LOSS_GRADIENT.to(device)])[: len(parameters)]
        waits = standin.waits()
        gradients = [gradient.cpu() for gradient in gradients]
        return loss.cpu(), dict(zip(executor.parameter_names, gradients, strict=True)), waits

    direct = run_directly(text, state, x, sum(LOCAL_ROWS), [LOSS_GRADIENT])
    errors, waits = [], {}
    for loss, gradients, counted in run_ranks(2, one_rank):
        waits |= counted
        errors.append((loss - direct.outputs[0]).abs().max())
        errors += [(found - direct.gradients[k]).abs().max() for k, found in gradients.items()]
    return torch.stack(errors).nan_to_num(torch.inf).max().item(), waits


@pytest.mark.parametrize("delay_us", [0, 300])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_on_two_devices_equals_one_process(name, delay_us):
    standin.set_delay(delay_us)
    error, _ = run(name)
    assert error < 1e-12


@pytest.mark.parametrize("name", PLANS)
def test_only_the_thread_that_moves_messages_waits_for_the_device(name):
    _, waits = run(name)
    # Who computes reads the incoming gradient of the loss, to see whether it is 1.
    others = {
        (thread, place)
        for thread, place in waits
        if not thread.startswith("rannc-staged") and place not in ("copy to device", "copy to host")
    }
    assert {place for _, place in others} <= {"aten::_local_scalar_dense"}
    assert any(thread.startswith("rannc-staged") for thread, _ in waits)


@pytest.mark.parametrize("name", PLANS)
def test_a_stream_that_records_nothing_is_seen(name):
    standin.set_delay(2000)
    error, _ = run(name, streams=lambda: _C.comm.LateStream(0.0))
    assert error > 1e-3
