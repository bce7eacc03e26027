"""Random numbers that depend on seed, step, node and sample: the same under every plan."""

import json
import math
import random

import keyed_masks
import pytest
import torch
from dropout_models import DROPOUTS
from graph_text import GraphText
from pipeline import layout, local_state, make_tensors, rows_of, rows_of_rank, run_ranks
from random_graphs import RandomGraph, loss_first, random_plan

from pyrannc import _C, Config, RaNNCModule
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check

SEED, STEP = 2**40 + 7, 3


def make_executor(text, plan, communicator, step=STEP):
    draws = _C.runtime.DrawSteps(SEED)
    draws.step = step
    return _C.runtime.Executor(
        _C.ir.parse(text),
        [],
        _C.plan.Plan.from_json(json.dumps(plan)),
        communicator,
        outputs=_C.plan.Outputs.all,
        draws=draws,
    )


def alone(node_names):
    stage = {"nodes": node_names, "ranks": [0], "recompute": False}
    return {
        "format": "rannc-plan",
        "version": 1,
        "schedule": "gpipe",
        "micro_batches": 1,
        "stages": [stage],
    }


def run(graph, outputs, plan, local_rows, seed=0, step=STEP):
    """Of each rank: outputs, and gradients of the first output, by name."""
    state, inputs = graph.state(seed), make_tensors(graph.inputs, sum(local_rows), seed + 1)
    one = torch.ones((), dtype=torch.float64)

    def one_rank(communicator):
        executor = make_executor(graph.text(outputs), plan, communicator, step)
        parameters, buffers = local_state(executor, state)
        own = rows_of_rank(communicator.rank, graph, inputs, local_rows)
        call = executor.forward(own, parameters, buffers, local_rows, True)
        given = call.outputs
        gradients = call.backward([one] + [None] * (len(outputs) - 1))
        return given, dict(zip(executor.parameter_names, gradients, strict=False))

    return run_ranks(len(local_rows), one_rank)


# -- the numbers themselves ------------------------------------------------------------------------


def words(node, sample, count):
    return keyed_masks.words(SEED, STEP, node, [sample], count)[0].tolist()


def drawn(op, arguments, sizes, rows="apart(0)", batch=3, shape=("B", 2, 4)):
    """What ``op`` gives for an input of ones."""
    graph = GraphText()
    weight = graph.parameter("weight", (1,))
    x = graph.input("x", shape, rows)
    given = [x, *arguments] if op.endswith("_like") or "dropout" in op else arguments
    y = graph.call(op, given, sizes, rows)
    loss = graph.mean(graph.call("aten::mul.Tensor", [y, weight], sizes, rows))
    executor = make_executor(
        graph.text([loss, y]), alone(graph.node_names), _C.comm.make_local(1)[0]
    )
    parameters, buffers = local_state(executor, graph.state())
    ones = torch.ones([batch if size == "B" else size for size in shape], dtype=torch.float64)
    return executor.forward([ones], parameters, buffers, [batch], True).outputs[1]


def test_dropout_keeps_what_the_words_of_its_sample_say():
    result = drawn("aten::dropout", [0.25, True], ("B", 2, 4))
    for sample in range(3):
        kept = [word >= 0.25 * 2**32 for word in words("n0", sample, 8)]
        expected = torch.tensor(kept, dtype=torch.float64).reshape(2, 4) / 0.75
        torch.testing.assert_close(result[sample], expected)


def test_a_sequence_first_value_draws_the_same_numbers_for_a_sample():
    batch_first = drawn("aten::dropout", [0.5, True], ("B", 2, 4))
    sequence_first = drawn("aten::dropout", [0.5, True], (2, "B", 4), "apart(1)", shape=(2, "B", 4))
    assert torch.equal(batch_first.transpose(0, 1), sequence_first)


def test_numbers_have_their_distributions():
    sizes = ("B", 2, 5000)
    shape = {"shape": sizes}
    uniform = drawn("aten::rand_like", [None, None, None, False, None], sizes, **shape)
    bits = words("n0", 1, 2)
    assert uniform[1, 0, 0] == ((bits[0] << 32 | bits[1]) >> 11) / 2**53
    assert uniform.min() >= 0 and uniform.max() < 1
    # 30,000 numbers: the mean is off by 1/sqrt(12 * 30,000) = 0.0017.
    assert abs(uniform.mean() - 0.5) < 0.007
    normal = drawn("aten::randn_like", [None, None, None, False, None], sizes, **shape)
    assert abs(normal.mean()) < 0.025 and abs(normal.std() - 1) < 0.025
    assert abs((normal < 1).double().mean() - 0.5 * (1 + math.erf(0.5**0.5))) < 0.01
    dropped = drawn("aten::dropout", [0.1, True], sizes, **shape)
    assert abs((dropped == 0).double().mean() - 0.1) < 0.007
    alpha = drawn("aten::alpha_dropout", [0.3, True], sizes, **shape)
    assert len(alpha.unique()) == 2


def test_feature_dropout_drops_whole_channels():
    result = drawn("aten::feature_dropout", [0.5, True], ("B", 2, 4), batch=20)
    assert all(len(channel.unique()) == 1 for channel in result.flatten(0, 1))
    assert len(result.unique()) == 2
    # Where the rows come after the channels, they share their numbers, as in torch.
    first, shared = (
        drawn("aten::feature_dropout", [0.5, True], (6, 7, "B"), "apart(2)", rows, (6, 7, "B"))
        for rows in (1, 5)
    )
    assert torch.equal(shared, first.expand_as(shared))


def test_steps_and_nodes_draw_other_numbers():
    graph = GraphText()
    x = graph.parameter("x", (64,))
    h = graph.call("aten::mul.Tensor", [graph.input("i", ("B", 64)), x], ("B", 64))
    first = graph.call("aten::dropout", [h, 0.5, True], h.sizes)
    second = graph.call("aten::dropout", [h, 0.5, True], h.sizes)
    outputs = [graph.mean(first), first, second]
    ((_, a, b), _), *_ = run(graph, outputs, alone(graph.node_names), [4])
    ((_, c, _), _), *_ = run(graph, outputs, alone(graph.node_names), [4], step=STEP + 1)
    ((_, d, _), _), *_ = run(graph, outputs, alone(graph.node_names), [4])
    assert torch.equal(a, d) and not torch.equal(a, c) and not torch.equal(a, b)


# -- under plans -----------------------------------------------------------------------------------


def check_seed(seed):
    choose = random.Random(seed)
    schedule = ["gpipe", "1f1b", "interleaved"][seed % 3]
    model = RandomGraph(seed, draws=True)
    outputs, graph = loss_first(model), model.graph
    ranks = choose.randint(2 if schedule == "interleaved" else 1, 5)
    local_rows = [choose.randint(0, 3) for _ in range(ranks)]
    local_rows[choose.randrange(ranks)] += 4
    plan = random_plan(graph.node_names, ranks, seed, schedule)
    ((whole, gradients),) = run(graph, outputs, alone(graph.node_names), [sum(local_rows)])
    begin = 0
    try:
        for rank, (given, own) in enumerate(run(graph, outputs, plan, local_rows)):
            end = begin + local_rows[rank]
            for value, ours, theirs in zip(outputs, given, whole, strict=True):
                theirs = rows_of(theirs, value.rows, begin, end) if layout(value.rows) else theirs
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
            for name, gradient in own.items():
                if gradient is None or gradients[name] is None:
                    assert all(t is None or not t.any() for t in (gradient, gradients[name])), name
                else:
                    torch.testing.assert_close(gradient, gradients[name], rtol=1e-9, atol=1e-9)
            begin = end
    except Exception as error:
        error.add_note(f"seed {seed}, local rows {local_rows}, {plan}\n{graph.text(outputs)}")
        raise


def test_random_plans_of_random_graphs_with_dropout_equal_one_rank():
    for seed in range(60):
        check_seed(seed)


@pytest.mark.all
@pytest.mark.parametrize("hundred", range(20))
def test_two_thousand_random_plans_with_dropout_equal_one_rank(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_seed(seed)


# -- models ----------------------------------------------------------------------------------------


class Attention(torch.nn.Module):
    def __init__(self, masked, causal):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.masked, self.causal = masked, causal

    def forward(self, x, mask):
        q, k, v = (self.layer(x) * scale for scale in (1, 2, 3))
        heads = [part.reshape(-1, 5, 2, 4).transpose(1, 2) for part in (q, k, v)]
        given = {"bool": mask[:, None, None, :] > 0, "float": mask[:, None, None, :], "": None}
        return torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=given[self.masked], dropout_p=0.3, is_causal=self.causal
        )


@pytest.mark.parametrize(
    ("masked", "causal"), [("", True), ("", False), ("bool", False), ("float", False)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention_with_dropout_taken_apart_is_what_torch_computes(masked, causal, dtype):
    model = Attention(masked, causal).to(dtype)
    mask = torch.randn(6, 5, dtype=dtype)
    mask[0] = -1.0  # of this sample, nothing is kept
    call = (torch.randn(6, 5, 8, dtype=dtype), mask)
    captured = capture(model, call, explicit_draws=True)
    operators = [node.op for node in captured.graph.nodes]
    assert "aten::scaled_dot_product_attention" not in operators
    assert operators.count("aten::dropout") == 1
    report = check(model, captured, call, {})
    report.raise_if_wrong()
    assert report.rows_proved and not any("random" in text for text in report.skipped), report


@pytest.mark.parametrize("name", ["dropout_attention", "dropout_kinds", "dropout_language"])
def test_one_rank_drops_what_a_plain_model_does_with_these_masks(name):
    """tests/dist/test_equality.py hands them to the model that plans on four ranks must equal."""
    entry, rows = DROPOUTS[name], 6
    model, plain = (entry.build().double() for _ in range(2))
    config = Config(deterministic_dropout=True, calibrate=False, pipeline_num=1)
    wrapped = RaNNCModule(model, config=config, batch_dims=entry.batch_dims, outputs="all")
    torch.manual_seed(SEED)
    losses = set()
    for step in range(2):  # the batch is the same, the masks are not
        args, kwargs = entry.inputs(rows)
        args = [x.double() if x.is_floating_point() else x for x in args]
        ours = wrapped(*args, **kwargs)
        graph = wrapped._deployment.first.capture.graph
        with keyed_masks.KeyedMasks(graph, SEED, step, range(rows)):
            theirs = plain(*args, **kwargs)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        losses.add((ours if torch.is_tensor(ours) else ours[0]).sum().item())
    assert len(losses) == 2


def test_dropout_between_the_layers_of_an_lstm_is_named():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.memory(x)[0]

    model, x = Model(), torch.randn(6, 3, 4)
    with pytest.raises(_C.util.TraceError, match=r"aten::lstm.*module 'memory', .*\.py:\d+"):
        capture(model, (x,), explicit_draws=True)
    capture(model.eval(), (x,), explicit_draws=True)
