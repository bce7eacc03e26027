"""The executor against direct execution: ranks as threads, graphs written by hand or at random."""

import borders
import pytest
import torch
from direct import assert_close, check, check_calls
from graph_text import GraphText
from pipeline import (
    local_state,
    make_executor,
    make_plan,
    make_tensors,
    plan_of_stages,
    run_directly,
    run_plan,
    run_ranks,
)

from pyrannc import _C

# Ranks of each stage.
PLANS = {
    "4": [[0, 1, 2, 3]],
    "2+2": [[0, 1], [2, 3]],
    "1+3": [[0], [1, 2, 3]],
    "3+1": [[0, 1, 2], [3]],
    "2+1+1": [[0, 1], [2], [3]],
    "1+1+1+1": [[0], [1], [2], [3]],
}


def skip_and_tied():
    """A skip connection over all stages, a tied weight, two inputs, two outputs and a loss."""
    graph = GraphText()
    x = graph.input("x", ("B", 3), grad=True)
    late = graph.input("late", ("B", 4))
    tied = graph.parameter("tied", (4, 4))
    first = graph.linear(x, "first", 4)
    h = graph.call("aten::linear", [first, tied, None], ("B", 4))
    h = graph.call("aten::tanh", [h], ("B", 4))
    h = graph.linear(h, "middle", 4)
    h = graph.call("aten::add.Tensor", [h, late, 1], ("B", 4))
    h = graph.call("aten::linear", [h, tied, None], ("B", 4))
    h = graph.call("aten::add.Tensor", [h, first, 1], ("B", 4))
    loss = graph.mean(graph.call("aten::mul.Tensor", [h, h], ("B", 4)))
    return graph, [loss, h, first]


def sequence_first():
    """(S, B, E) and (S*B, E) cross the borders, and two kinds of scalars leave."""
    graph = GraphText()
    x = graph.input("x", (5, "B", 2), "apart(1)", grad=True)
    h = graph.linear(x, "a", 3)
    flat = graph.call("aten::reshape", [h, ["5*B", 3]], ("5*B", 3), "apart(0, outer=5)")
    flat = graph.linear(flat, "b", 3)
    flat = graph.call("aten::tanh", [flat], flat.sizes, flat.rows)
    h = graph.call("aten::reshape", [flat, [5, "B", 3]], (5, "B", 3), "apart(1)")
    total = graph.call("aten::sum", [graph.linear(h, "c", 1), None], (), "sum")
    return graph, [graph.mean(h), total, h, flat]


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("ranks", PLANS)
@pytest.mark.parametrize("model", [skip_and_tied, sequence_first])
def test_a_plan_equals_direct_execution(model, ranks, micro_batches):
    graph, outputs = model()
    plan = make_plan(graph.node_names, PLANS[ranks], micro_batches)
    check(graph, outputs, plan, local_rows=[2, 2, 2, 2])


@pytest.mark.parametrize("local_rows", [[3, 2, 1, 1], [0, 5, 0, 1], [1, 0, 0, 0]])
@pytest.mark.parametrize("ranks", PLANS)
def test_uneven_batches_are_exact_even_where_a_rank_has_no_rows(ranks, local_rows):
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, PLANS[ranks], micro_batches=3, recompute=True)
    check(graph, outputs, plan, local_rows)


@pytest.mark.parametrize("ranks", PLANS)
def test_every_call_may_have_a_batch_of_its_own(ranks):
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, PLANS[ranks], micro_batches=2)
    # Twice the first one, the last partial batch, a larger one, and one that only two ranks hold.
    check_calls(
        graph,
        outputs,
        plan,
        [[2, 2, 2, 2], [2, 2, 2, 2], [2, 1, 0, 0], [5, 4, 7, 3], [0, 3, 0, 1], [2, 2, 2, 2]],
    )


def batch_norm_graph(calls):
    """A linear layer, then one BatchNorm module called ``calls`` times, and a mean."""
    graph = GraphText()
    h = graph.linear(graph.input("x", ("B", 2, 3)), "in", 3)
    scale = graph.parameter("bn.weight", (2,))
    mean, variance = graph.buffer("bn.mean", (2,)), graph.buffer("bn.variance", (2,))
    count = graph.buffer("bn.count", (), dtype="int64")
    for _ in range(calls):
        graph.call(
            "aten::add_.Tensor",
            [count, 1, 1],
            (),
            "none",
            writes=[count],
            shares=count,
            module="bn",
            dtype="int64",
        )
        h = graph.call(
            "aten::batch_norm",
            [h, scale, None, mean, variance, True, 0.25, 1e-5, False],
            h.sizes,
            writes=[mean, variance],
            module="bn",
        )
        h = graph.call("aten::tanh", [h], h.sizes)
    return graph, [graph.mean(h), h]


def batch_norm_twin(state, x, calls, micro_batches):
    """The rule by hand: each share normalised by itself, statistics weighted by its rows.

    ``micro_batches``: for each one the row numbers of each share. Returns loss, gradients, buffers.
    """
    weights = {
        name: state[name].clone().requires_grad_() for name in ("in.weight", "in.bias", "bn.weight")
    }
    mean, variance = state["bn.mean"].clone(), state["bn.variance"].clone()
    loss = 0
    for shares in micro_batches:
        rows = sum(map(len, shares))
        hs = [
            torch.nn.functional.linear(x[s], weights["in.weight"], weights["in.bias"])
            for s in shares
        ]
        for _ in range(calls):
            means = [h.mean((0, 2)) for h in hs]
            variances = [h.var((0, 2)) for h in hs]
            for running, parts in ((mean, means), (variance, variances)):
                new = sum(
                    len(s) / rows * part.detach() for s, part in zip(shares, parts, strict=True)
                )
                running.mul_(0.75).add_(new, alpha=0.25)
            hs = [
                torch.nn.functional.batch_norm(h, None, None, weights["bn.weight"], None, True)
                for h in hs
            ]
            hs = [torch.tanh(h) for h in hs]
        loss = loss + sum(h.mean() * len(s) for h, s in zip(hs, shares, strict=True)) / len(x)
    loss.backward()
    return loss.detach(), {n: w.grad for n, w in weights.items()}, mean, variance


WAYS = ["never", "always", "segments"]

# Local rows 3 and 2 in two micro-batches: [0,2) of rank 0 with [0,1) of rank 1, then the others.
SPLIT = [[[0, 1], [3]], [[2], [4]]]
ONE_BY_ONE = [[[0, 1, 3]], [[2, 4]]]


@pytest.mark.parametrize("recompute", [False, True, borders.segments_of(9)], ids=WAYS)
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize(
    ("stage_ranks", "shares"), [([[0, 1]], SPLIT), ([[0], [1]], ONE_BY_ONE)], ids=["2", "1+1"]
)
def test_batch_norm_weights_the_statistics_of_replicas_by_their_rows(
    stage_ranks, shares, calls, recompute
):
    graph, outputs = batch_norm_graph(calls)
    nodes = [graph.node_names]
    if len(stage_ranks) == 2:  # what shares the buffers shares a stage
        nodes = [graph.node_names[:1], graph.node_names[1:]]
    plan = plan_of_stages(nodes, stage_ranks, micro_batches=2, recompute=recompute)
    state = graph.state()
    state["bn.variance"].abs_()
    state["bn.count"] = torch.tensor(7)
    x = make_tensors(graph.inputs, 5)[0]
    gradients = [torch.ones((), dtype=torch.float64), torch.zeros(5, 2, 3, dtype=torch.float64)]
    loss, expected, mean, variance = batch_norm_twin(state, x, calls, shares)
    for rank, result in enumerate(run_plan(graph, outputs, plan, state, [x], [3, 2], gradients)):
        assert_close(result.outputs[0], loss, f"rank {rank}, loss")
        for name, gradient in result.gradients.items():
            assert_close(gradient, expected[name], f"rank {rank}, {name}")
        if not result.buffers:
            continue
        assert_close(result.buffers["bn.mean"], mean, f"rank {rank}, mean")
        assert_close(result.buffers["bn.variance"], variance, f"rank {rank}, variance")
        assert result.buffers["bn.count"] == 7 + 2 * calls  # once per call and micro-batch
    assert any(
        result.buffers for result in run_plan(graph, outputs, plan, state, [x], [3, 2], gradients)
    )


def test_statistics_are_updated_without_gradients_too_and_once():
    graph, outputs = batch_norm_graph(calls=1)
    plan = make_plan(graph.node_names, [[0, 1]], micro_batches=2)
    state = graph.state()
    state["bn.count"] = torch.tensor(0)
    x = make_tensors(graph.inputs, 5)[0]
    _, _, mean, _ = batch_norm_twin(state, x, 1, SPLIT)

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        parameters, buffers = local_state(executor, state)
        own = x[:3] if communicator.rank == 0 else x[3:]
        call = executor.forward([own], parameters, buffers, [3, 2], False)
        with pytest.raises(_C.util.RaNNCError, match="ran without gradients"):
            call.backward([None, None])
        return dict(zip(executor.buffer_names, buffers, strict=True))

    for buffers in run_ranks(2, one_rank):
        assert_close(buffers["bn.mean"], mean, "mean")
        assert buffers["bn.count"] == 2


@pytest.mark.parametrize("recompute", [False, True, borders.segments_of(1)], ids=WAYS)
@pytest.mark.parametrize("stage_ranks", [[[0]], [[0], [1]], [[0, 1], [2]], [[0], [1]] * 2], ids=str)
def test_a_buffer_that_the_batch_does_not_decide_is_written_once_in_a_call(stage_ranks, recompute):
    graph = GraphText()
    h = graph.linear(graph.input("x", ("B", 3)), "in", 3)
    vector = graph.buffer("power.vector", (3,))
    turned = graph.call(
        "aten::sin_", [vector], (3,), "none", writes=[vector], shares=vector, module="power"
    )
    h = graph.call("aten::mul.Tensor", [h, turned], ("B", 3))
    h = graph.linear(h, "out", 3)
    loss = graph.mean(graph.call("aten::mul.Tensor", [h, turned], ("B", 3)))
    ranks = len({rank for ranks in stage_ranks for rank in ranks})
    schedule = "interleaved" if len(stage_ranks) == 4 else "gpipe"
    plan = make_plan(graph.node_names, stage_ranks, 4, recompute, schedule)
    plan["interleave"] = 2 if schedule == "interleaved" else 1
    # Also where a rank has no rows in some micro-batch.
    check_calls(graph, [loss], plan, [[5] + [1] * (ranks - 1), [2] + [0] * (ranks - 1)])


def test_a_buffer_takes_an_argument_also_on_a_replica_without_rows():
    """A running mean of temperatures, say: a replica that had no rows left the write out, and its
    buffer went on with what it was, which no output of that call showed."""
    graph = GraphText()
    h = graph.linear(graph.input("x", ("B", 3)), "in", 3)
    argument = graph.input("t", (3,), rows=None)
    seen = graph.buffer("seen", (3,))
    now = graph.call(
        "aten::add_.Tensor", [seen, argument, 1], (3,), "none", writes=[seen], shares=seen
    )
    loss = graph.mean(graph.call("aten::mul.Tensor", [h, now], ("B", 3)))
    for stage_ranks in [[[0, 1]], [[0], [1, 2]]]:
        ranks = sum(map(len, stage_ranks))
        plan = make_plan(graph.node_names, stage_ranks, 2)
        check_calls(graph, [loss], plan, [[1] + [0] * (ranks - 1), [3] + [1] * (ranks - 1)])


def test_a_buffer_that_replicas_would_write_differently_is_an_error():
    graph = GraphText()
    x = graph.input("x", ("B", 2))
    seen = graph.buffer("tracker.seen", (2,))
    total = graph.call("aten::sum.dim_IntList", [x, [0], False, None], (2,), "sum")
    graph.call(
        "aten::add_.Tensor",
        [seen, total, 1],
        (2,),
        "sum",
        writes=[seen],
        shares=seen,
        module="tracker",
    )
    text = graph.text([graph.mean(x)])
    plan = make_plan(graph.node_names, [[0, 1]], micro_batches=1)

    def one_rank(communicator):
        with pytest.raises(_C.util.PlanError, match=r"buffer 'tracker.seen'.* 2 replicas"):
            make_executor(text, plan, communicator)

    run_ranks(2, one_rank)


def dropout_graph():
    graph = GraphText()
    h = graph.linear(graph.input("x", ("B", 8), grad=True), "a", 8)
    for name in ("b", "c", "d"):
        h = graph.call("aten::dropout", [h, 0.4, True], h.sizes)
        h = graph.call("aten::relu", [graph.linear(h, name, 8)], h.sizes)
    return graph, [graph.mean(h), h]


@pytest.mark.parametrize(("stage_ranks", "micro_batches"), [([[0]], 1), ([[0]], 3)])
def test_recompute_gives_the_same_bits_with_dropout(stage_ranks, micro_batches):
    # On one rank: ranks that are threads share a generator, and tests/dist/test_draws.py has more.
    graph, outputs = dropout_graph()
    ranks = len(stage_ranks)
    local_rows = [6] + [0] * (ranks - 1)
    state, x = graph.state(), make_tensors(graph.inputs, 6)
    gradients = make_tensors(outputs, 6, seed=5)
    results, after = [], []
    for recompute in (False, True, borders.segments_of(3)):
        torch.manual_seed(3)
        plan = make_plan(graph.node_names, stage_ranks, micro_batches, recompute)
        results.append(run_plan(graph, outputs, plan, state, x, local_rows, gradients))
        after.append(torch.get_rng_state())
    assert torch.equal(after[0], after[1]) and torch.equal(
        after[0], after[2]
    )  # the random state goes on as if nothing had been run again
    for kept, *others in zip(*results, strict=True):
        for recomputed in others:
            assert all(map(torch.equal, kept.outputs, recomputed.outputs))
            assert kept.gradients.keys() == recomputed.gradients.keys()
            for name, gradient in kept.gradients.items():
                assert gradient.any() and torch.equal(gradient, recomputed.gradients[name]), name
            assert torch.equal(kept.input_gradients[0], recomputed.input_gradients[0])


def test_two_forwards_before_the_backwards_are_independent():
    graph, outputs = skip_and_tied()
    text, state = graph.text(outputs), graph.state()
    plan = make_plan(graph.node_names, [[0], [1, 2]], micro_batches=2)
    local_rows, gradients = [2, 2, 2], make_tensors(outputs, 6, seed=9)
    batches = [make_tensors(graph.inputs, 6, seed=seed) for seed in (1, 2)]

    def one_rank(communicator):
        executor = make_executor(text, plan, communicator)
        parameters, buffers = local_state(executor, state)
        begin = 2 * communicator.rank
        own = [[t[begin : begin + 2] for t in batch] for batch in batches]
        grads = [gradients[0], *(3 * g[begin : begin + 2] for g in gradients[1:])]
        calls = [executor.forward(inputs, parameters, buffers, local_rows, True) for inputs in own]
        # In the other order: as autograd does for (first + second).backward().
        found = {index: calls[index].backward(grads) for index in (1, 0)}
        with pytest.raises(_C.util.RaNNCError, match="twice on one forward"):
            calls[0].backward(grads)
        names = executor.parameter_names
        return [dict(zip(names, found[index], strict=False)) for index in (0, 1)]

    ranks = run_ranks(3, one_rank)
    for index, batch in enumerate(batches):
        direct = run_directly(text, state, batch, 6, gradients)
        for result in ranks:
            for name, gradient in result[index].items():
                assert_close(gradient, direct.gradients[name], f"call {index}, {name}")


@pytest.mark.parametrize(
    ("stage_ranks", "message"),
    [([[0, 1]], "in the same order"), ([[0], [1]], "wait for each other")],
)
def test_backwards_in_different_orders_are_an_error(stage_ranks, message):
    graph, outputs = sequence_first()  # no tied weight: two stages have no reduction to compare in
    plan = make_plan(graph.node_names, stage_ranks, micro_batches=1)
    state = graph.state()

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        parameters, buffers = local_state(executor, state)
        calls = [
            executor.forward(make_tensors(graph.inputs, 2), parameters, buffers, [2, 2], True)
            for _ in range(2)
        ]
        calls[communicator.rank].backward([torch.ones((), dtype=torch.float64), None, None, None])

    with pytest.raises(_C.util.CommError, match=message):
        run_ranks(2, one_rank, timeout_s=1.0)


def test_gradients_of_the_caller_are_not_written():
    # All rows are rank 0's, so the gradient of its output is taken as it is; then the gradient from
    # the next stage is added.
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, [[0], [1]], micro_batches=1)
    state, inputs = graph.state(), make_tensors(graph.inputs, 4)
    one, first = torch.ones((), dtype=torch.float64), torch.ones(4, 4, dtype=torch.float64)

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        parameters, buffers = local_state(executor, state)
        own = inputs if communicator.rank == 0 else [tensor[:0] for tensor in inputs]
        call = executor.forward(own, parameters, buffers, [4, 0], True)
        call.backward([one, None, first if communicator.rank == 0 else None])

    run_ranks(2, one_rank)
    assert torch.equal(first, torch.ones(4, 4, dtype=torch.float64))


@pytest.mark.parametrize("stage_ranks", [[[0, 1]], [[0], [1]]])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_one_forward_one_backward_runs_inside_the_forward(stage_ranks, micro_batches):
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, stage_ranks, micro_batches, schedule="1f1b")
    check_gradient = torch.tensor(2.5, dtype=torch.float64)
    state, inputs = graph.state(), make_tensors(graph.inputs, 5)
    text = graph.text(outputs[:1])
    direct = run_directly(text, state, inputs, 5, [check_gradient])
    for result in run_plan(graph, outputs[:1], plan, state, inputs, [3, 2], [check_gradient]):
        assert_close(result.outputs[0], direct.outputs[0], "loss")
        for name, gradient in result.gradients.items():
            assert_close(gradient, direct.gradients[name], name)


def test_a_frozen_parameter_and_an_unused_output_take_no_part():
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, [[0, 1]], micro_batches=2)
    state, inputs = graph.state(), make_tensors(graph.inputs, 4)

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        parameters, buffers = local_state(executor, state)
        frozen = executor.parameter_names.index("tied")
        parameters[frozen].requires_grad_(False)
        begin = 2 * communicator.rank
        own = [tensor[begin : begin + 2] for tensor in inputs]
        call = executor.forward(own, parameters, buffers, [2, 2], True)
        gradients = call.backward([torch.ones((), dtype=torch.float64), None, None])
        assert gradients[frozen] is None
        assert parameters[0].grad is None  # the caller's own gradients are left alone
        return dict(zip(executor.parameter_names, gradients, strict=False))

    zeros = [torch.zeros(4, *sizes, dtype=torch.float64) for sizes in ((4,), (4,))]
    one = torch.ones((), dtype=torch.float64)
    direct = run_directly(graph.text(outputs), state, inputs, 4, [one, *zeros])
    for result in run_ranks(2, one_rank):
        for name in ("first.weight", "middle.bias"):
            assert_close(result[name], direct.gradients[name], name)


def test_a_wrong_argument_is_named_with_both_shapes():
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, [[0]], micro_batches=1)
    state = graph.state()
    communicator = _C.comm.make_local(1)[0]
    executor = make_executor(graph.text(outputs), plan, communicator)
    parameters, buffers = local_state(executor, state)
    x, late = make_tensors(graph.inputs, 2)
    wanted = r"'late' is float64\[2, 3\].* float64\[2, 4\] on rank 0"
    with pytest.raises(_C.util.RaNNCError, match=wanted):
        executor.forward([x, x], parameters, buffers, [2], True)
    with pytest.raises(_C.util.RaNNCError, match=r"'x' is float32\[2, 3\]"):
        executor.forward([x.float(), late], parameters, buffers, [2], True)
    with pytest.raises(_C.util.RaNNCError, match="2 tensor arguments, but was called with 1"):
        executor.forward([x], parameters, buffers, [2], True)


def held_bytes(recompute):
    """Bytes that one rank holds after the forward and after the backward of eight tanh, 4 times."""
    graph = GraphText()
    h = graph.input("x", ("B", 1024))
    h = graph.linear(h, "in", 1024)
    for _ in range(8):
        h = graph.call("aten::tanh", [h], h.sizes)
    text = graph.text([graph.mean(h)])
    plan = make_plan(graph.node_names, [[0]], micro_batches=4, recompute=recompute)
    executor = make_executor(text, plan, _C.comm.make_local(1)[0])
    parameters, buffers = local_state(executor, graph.state())
    x = make_tensors(graph.inputs, 64)
    with _C.runtime.MemoryRecorder() as memory:
        call = executor.forward(x, parameters, buffers, [64], True)
        after_forward = memory.current_bytes
        gradients = call.backward([torch.ones((), dtype=torch.float64)])
        return (
            after_forward,
            memory.current_bytes,
            sum(g.nbytes for g in gradients if g is not None),
        )


def test_recompute_keeps_inputs_only_and_backward_frees_everything():
    # One tanh of all 64 rows is 64 * 1024 * 8 bytes; each of the eight saves its result.
    value = 64 * 1024 * 8
    kept, after_backward, gradients = held_bytes(recompute=False)
    assert 8 * value <= kept < 10 * value
    assert gradients <= after_backward < gradients + value // 8
    # The inputs are the caller's; 5 KB of random state for each micro-batch stay.
    kept, after_backward, gradients = held_bytes(recompute=True)
    assert kept < value // 8
    assert gradients <= after_backward < gradients + value // 8


def test_segments_keep_what_they_take_and_backward_frees_everything():
    # The linear layer with two tanh, then three tanh, three more that run once, the mean: kept are
    # what the second segment takes and the three results of those that run once.
    value = 64 * 1024 * 8
    kept, after_backward, gradients = held_bytes(borders.segments_of(3))
    assert 4 * value <= kept < 4.5 * value
    assert gradients <= after_backward < gradients + value // 8


def test_what_crosses_a_cut_is_not_kept_where_no_operator_saves_it():
    graph = GraphText()
    weight = graph.parameter("weight", (1024,))
    h = graph.call("aten::mul.Tensor", [graph.input("x", ("B", 1024)), weight], ("B", 1024))
    y = graph.call("aten::neg", [h], h.sizes)  # saves nothing
    text, state = graph.text([y]), graph.state()
    plan = make_plan(graph.node_names, [[0], [1]], micro_batches=1)
    value = 64 * 1024 * 8

    def one_rank(communicator):
        executor = make_executor(text, plan, communicator)
        parameters, buffers = local_state(executor, state)
        rows = [64, 0]
        x = make_tensors(graph.inputs, rows[communicator.rank])
        with _C.runtime.MemoryRecorder() as memory:
            call = executor.forward(x, parameters, buffers, rows, True)
            held = memory.current_bytes
            call.backward([torch.ones_like(output) for output in call.outputs])
        return held

    # The output goes to rank 0.
    assert run_ranks(2, one_rank)[1] < value // 8


def token_graph():
    """Token numbers and a mask of them, which cross stages as integers and bools."""
    graph = GraphText()
    ids = graph.input("ids", ("B", 3), dtype="int64")
    padding = graph.call("aten::eq.Scalar", [ids, 0], ("B", 3), dtype="boolean")
    table = graph.parameter("table", (5, 4))
    h = graph.call("aten::embedding", [table, ids, -1, False, False], ("B", 3, 4))
    h = graph.linear(h, "a", 4)
    mask = graph.call(
        "aten::unsqueeze", [padding, -1], ("B", 3, 1), dtype="boolean", shares=padding
    )
    h = graph.call("aten::masked_fill.Scalar", [h, mask, 0.5], ("B", 3, 4))
    h = graph.linear(h, "b", 4)
    matches = graph.call("aten::sum", [padding, None], (), "sum", dtype="int64")
    again = graph.call("aten::embedding", [table, ids, -1, False, False], ("B", 3, 4))
    h = graph.call("aten::mul.Tensor", [h, again], ("B", 3, 4))
    return graph, [graph.mean(h), matches, padding]


@pytest.mark.parametrize("ranks", PLANS)
def test_integers_and_bools_cross_stages(ranks):
    graph, outputs = token_graph()
    plan = make_plan(graph.node_names, PLANS[ranks], micro_batches=2)
    check(graph, outputs, plan, local_rows=[2, 1, 1, 3])


@pytest.mark.parametrize("ranks", PLANS)
def test_conjugates_that_torch_makes_when_they_are_read_cross_stages(ranks):
    graph = GraphText()
    h = graph.linear(graph.input("x", ("B", 4)), "in", 4)
    pairs = graph.call("aten::view", [h, "[B, 2, 2]"], ("B", 2, 2))
    both = []
    for _ in range(4):
        numbers = graph.call("aten::view_as_complex", [pairs], ("B", 2), dtype="complex128")
        turned = graph.call("aten::conj", [numbers], ("B", 2), dtype="complex128")
        plain = graph.call("aten::resolve_conj", [turned], ("B", 2), dtype="complex128")
        pairs = graph.call("aten::view_as_real", [plain], ("B", 2, 2))
        both.append(graph.call("aten::sin", [pairs], ("B", 2, 2)))
    plan = make_plan(graph.node_names, PLANS[ranks], 2)
    check(graph, both, plan, local_rows=[2, 1, 1, 3][: max(map(max, PLANS[ranks])) + 1])


def unusual_outputs():
    """Outputs that no stage computes: an argument, a parameter, and what follows from it."""
    graph = GraphText()
    x = graph.input("x", ("B", 3), grad=True)
    scale = graph.input("scale", (3,), "none")
    h = graph.linear(x, "a", 3)
    h = graph.call(
        "aten::mul.Tensor",
        [
            h,
            scale,
        ],
        h.sizes,
    )
    weight = graph.parameter("weight", (3, 3))
    penalty = graph.call("aten::mul.Tensor", [weight, weight], (3, 3), "none")
    h = graph.call("aten::linear", [h, weight, None], h.sizes)
    return graph, [x, h, weight, penalty, h]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("ranks", PLANS)
def test_arguments_parameters_and_repeated_values_may_be_outputs(ranks, micro_batches):
    graph, outputs = unusual_outputs()
    stages = PLANS[ranks][:3]
    used = [rank for ranks in stages for rank in ranks]
    plan = make_plan(graph.node_names, stages, micro_batches)
    check(graph, outputs, plan, local_rows=[2, 1, 0, 3][: max(used) + 1])


def test_it_works_as_a_node_of_autograd_with_hooks_of_the_user():
    graph, outputs = skip_and_tied()
    plan = make_plan(graph.node_names, [[0], [1]], micro_batches=2)
    state, inputs = graph.state(), make_tensors(graph.inputs, 4)
    fired, backwards = [], []

    def around(gradients, keep_graph, backward):
        backward()
        backwards.append(1)

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator)
        parameters, buffers = local_state(executor, state)
        for parameter in parameters:
            parameter.register_hook(lambda gradient: fired.append(communicator.rank))
        begin = 2 * communicator.rank
        x, late = [tensor[begin : begin + 2] for tensor in inputs]
        x = x.clone().requires_grad_()
        for _ in range(2):
            call = executor.forward([x * 1, late], parameters, buffers, [2, 2], True)
            loss, h, _ = _C.runtime.join_autograd(
                call, [*parameters, x * 1, late], [True] * 3, around
            )
            (loss + (h * h).mean()).backward()
        return dict(zip(executor.parameter_names, parameters, strict=True)), x

    results = run_ranks(2, one_rank)
    interpreter = _C.runtime.Interpreter(_C.ir.parse(graph.text(outputs)), [])
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
    x = inputs[0].clone().requires_grad_()
    given = [leaves[name] for name in interpreter.state_names()]
    loss, h, _ = interpreter.run([x, inputs[1]], given, 4)
    (2 * (loss + (h * h).mean())).backward()
    for rank, (parameters, own) in enumerate(results):
        for name, parameter in parameters.items():
            assert_close(parameter.grad, leaves[name].grad, f"rank {rank}, {name}")
        assert_close(own.grad, x.grad[2 * rank : 2 * rank + 2], f"rank {rank}, x")
    # Once per parameter and backward, however many micro-batches there are.
    assert len(fired) == 2 * sum(len(parameters) for parameters, _ in results)
    assert len(backwards) == 4  # two backwards on each of two ranks
