"""What the executor sends, receives and sums is ordered by the stream that it is given."""

import json

import pytest
import torch
from graph_text import GraphText
from pipeline import local_state, make_plan, make_tensors, rows_of_rank, run_directly, run_ranks

from pyrannc import _C

LOCAL_ROWS = [2, 3, 2, 3]
STAGE_RANKS = {
    "gpipe": [[0, 1], [2, 3]],
    "1f1b": [[0, 1], [2, 3]],
    "interleaved": [[0, 1], [2, 3], [0, 1], [2, 3]],
}
LOSS_GRADIENT = torch.ones((), dtype=torch.float64)


def messages(program, rank):
    """``(sent, received, summed)``: how many of each kind ``rank`` has with others."""
    sent = received = summed = 0
    for kind, *rest in program["actions"][rank]:
        if kind in ("send", "receive"):
            transfer, direction = program["transfers"][rest[0]], rest[1]
            ends = [transfer["from"], transfer["to"]]
            if ends == [rank, rank]:
                continue
            sent += kind == "send"
            received += kind == "receive"
            assert rank == ends[(kind == "send") != (direction == "forward")]
        summed += kind in ("reduce_outputs", "reduce_gradients", "sync_buffers")
    return sent, received, summed


@pytest.mark.parametrize("schedule", STAGE_RANKS)
def test_messages_and_sums_wait_for_the_stream_and_the_stream_for_them(schedule):
    graph = GraphText()
    h = graph.input("x", ("B", 6))
    for layer in range(4):
        h = graph.linear(h, f"layer{layer}", 6)
    outputs = [graph.mean(h)]
    text = graph.text(outputs)
    plan = make_plan(graph.node_names, STAGE_RANKS[schedule], 4, schedule=schedule)
    plan["interleave"] = len(STAGE_RANKS[schedule]) // 2
    parsed, forced = _C.ir.parse(text), _C.plan.Plan.from_json(json.dumps(plan))
    program = json.loads(_C.plan.lower(forced, parsed, LOCAL_ROWS, True).to_json())
    state, x = graph.state(), make_tensors(graph.inputs, sum(LOCAL_ROWS))

    def one_rank(communicator):
        stream = _C.comm.LateStream(0.001)
        executor = _C.runtime.Executor(parsed, [], forced, communicator, stream=stream)
        parameters, buffers = local_state(executor, state)
        own = rows_of_rank(communicator.rank, graph, x, LOCAL_ROWS)
        call = executor.forward(own, parameters, buffers, LOCAL_ROWS, True)
        loss = call.outputs[0]
        gradients = call.backward([LOSS_GRADIENT])[: len(parameters)]
        return stream, loss, dict(zip(executor.parameter_names, gradients, strict=True))

    direct = run_directly(text, state, x, sum(LOCAL_ROWS), [LOSS_GRADIENT])
    for rank, (stream, loss, gradients) in enumerate(run_ranks(4, one_rank)):
        sent, received, summed = messages(program, rank)
        assert received > 0 and summed > 0
        assert stream.recorded == sent + received + summed
        # A message that was sent long ago need not be waited for.
        assert received + summed <= stream.waited <= sent + received + summed
        torch.testing.assert_close(loss, direct.outputs[0])
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, direct.gradients[name])
