import threading
import time

import pytest
import torch
from models import language_ids, mixtral

from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.profiling import operators

# A two-layer perceptron over (B, 8), and an embedding with a frozen table, an in-place add and a
# dropout: what test_model() does in eager mode.
GRAPH = """graph "small"(%x, %i) -> (%loss)
  input x: float32[B, 8] apart(0)
  input i: int64[B] apart(0)
  parameter w0: float32[16, 8] grad
  parameter b0: float32[16] grad
  parameter w1: float32[8, 16] grad
  parameter table: float32[10, 8]
  node up = aten::linear(%x, %w0, %b0) -> %h
    result h: float32[B, 16] apart(0) grad
  node act = aten::gelu(%h, "none") -> %a
    result a: float32[B, 16] apart(0) grad
  node drop = aten::dropout(%a, 0.5, true) -> %d
    result d: float32[B, 16] apart(0) grad
  node down = aten::linear(%d, %w1, none) -> %y
    result y: float32[B, 8] apart(0) grad
  node look = aten::embedding(%table, %i, -1, false, false) -> %e
    result e: float32[B, 8] apart(0)
  node add = aten::add_.Tensor(%y, %e, 1) -> %z writes %y
    result z: float32[B, 8] apart(0) grad shares %y
  node square = aten::mul.Tensor(%z, %z) -> %q
    result q: float32[B, 8] apart(0) grad
  node mean = aten::mean(%q, none) -> %loss
    result loss: float32[] mean grad
"""
NODES = ["up", "act", "drop", "down", "look", "add", "square", "mean"]


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def small():
    return _C.ir.parse(GRAPH)


def eager_saved_bytes(rows):
    """What autograd saves in eager mode on real tensors, each storage once, parameters excluded."""
    torch.manual_seed(0)
    shapes = {"w0": (16, 8), "b0": (16,), "w1": (8, 16)}
    parameters = {name: torch.randn(*shape, requires_grad=True) for name, shape in shapes.items()}
    parameters["table"] = torch.randn(10, 8)
    x, i = torch.randn(rows, 8), torch.randint(10, (rows,))
    kept = {tensor.untyped_storage().data_ptr(): 0 for tensor in parameters.values()}
    held = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        held.append(storage)  # so that its address is not given to another
        kept.setdefault(storage.data_ptr(), storage.nbytes())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        h = torch.nn.functional.linear(x, parameters["w0"], parameters["b0"])
        d = torch.nn.functional.dropout(torch.nn.functional.gelu(h), 0.5, True)
        y = torch.nn.functional.linear(d, parameters["w1"])
        y.add_(torch.nn.functional.embedding(i, parameters["table"]))
        (y * y).mean()
    return sum(kept.values())


@pytest.mark.parametrize("rows", [2, 6])
def test_saved_bytes_equal_what_autograd_keeps_on_real_tensors(rows):
    saved = operators.trace(small(), [], [rows, rows + 1]).saved
    assert sum(node[0] for node in saved) == eager_saved_bytes(rows)


def test_each_storage_counts_at_the_first_node_that_saves_it():
    saved = dict(zip(NODES, operators.trace(small(), [], [2, 4]).saved, strict=True))
    assert saved["up"] == [2 * 8 * 4, 4 * 8 * 4]  # x
    assert saved["act"] == [2 * 16 * 4, 4 * 16 * 4]  # h
    assert saved["look"] == [0, 0]  # the table is frozen
    assert saved["square"] == [2 * 8 * 4, 4 * 8 * 4]  # z, once though it is both factors
    assert saved["mean"] == [0, 0]


def test_saved_bytes_between_two_numbers_of_rows_lie_on_a_line():
    low, middle, high = operators.trace(small(), [], [2, 4, 8]).saved[0]
    assert (low, middle, high) == (64, 128, 256)


def test_saved_bytes_are_estimated_when_a_node_cannot_run_on_fake_tensors(capfd):
    text = GRAPH.replace("aten::gelu(%h", "aten::no_such_operator(%h")
    saved = operators.trace(_C.ir.parse(text), [], [2, 4]).saved
    assert saved[0] == [64, 128]
    assert "bytes saved for backward are estimated" in capfd.readouterr().err


def measure(rows=(2, 4), text=GRAPH):
    graph = _C.ir.parse(text)
    return _C.profile.measure(graph, [], [], _C.comm.make_local(1)[0], list(rows))[0]


def test_every_node_has_times_and_only_differentiable_ones_a_backward():
    costs = dict(zip(NODES, measure().node, strict=True))
    for name, (low, high) in costs.items():
        assert low.forward_ns > 0 and high.forward_ns > 0
        assert (low.backward_ns > 0) == (name != "look")


def test_the_first_call_of_a_long_operator_is_not_its_time():
    class SlowAtFirst(torch.autograd.Function):
        seconds = 0.0

        @staticmethod
        def forward(ctx, x):
            end = time.perf_counter() + SlowAtFirst.seconds
            while time.perf_counter() < end:  # busy: a thread's own time may be what counts
                pass
            SlowAtFirst.seconds = 0.0
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    captured = capture(Called(SlowAtFirst.apply), (torch.ones(4, 8),))
    SlowAtFirst.seconds = 0.5
    ranks = _C.comm.make_local(1)
    table, _ = _C.profile.measure(captured.graph, captured.objects, [], ranks[0], [2, 4])
    assert table.node[0][0].forward_ns < 0.25e9


def test_weights_are_in_no_cache_where_a_step_touches_much():
    graph = small()
    few, many = (_C.profile.keys(graph, rows)[0] for rows in ([2, 4], [2, 1 << 20]))
    assert "weights flushed" not in few
    assert "weights flushed" in many


def test_nodes_with_equal_signatures_have_equal_costs():
    text = GRAPH.replace("aten::mul.Tensor(%z, %z)", 'aten::gelu(%z, "none")')
    text = text.replace("[16, 8] grad", "[8, 8] grad").replace("[8, 16]", "[8, 8]")
    text = text.replace("[B, 16]", "[B, 8]").replace("[16]", "[8]")
    costs = dict(zip(NODES, measure(text=text).node, strict=True))
    assert costs["act"] == costs["square"]


def test_workspace_of_a_backward_holds_the_gradients_that_come_in_and_go_out():
    costs = dict(zip(NODES, measure().node, strict=True))
    # At 4 rows: of the result (4 * 16 floats) and of the operand (4 * 16 floats).
    assert costs["act"][1].workspace_bytes >= 2 * 4 * 16 * 4


def test_measuring_leaves_the_random_state_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    measure()
    assert torch.equal(before, torch.get_rng_state())


def test_an_operator_that_cannot_run_is_estimated_and_logged(capfd):
    costs = measure(text=GRAPH.replace("aten::gelu(%h", "aten::no_such_operator(%h"))
    assert costs.node[1][0].forward_ns > 0
    error = capfd.readouterr().err
    assert "cannot time node 'act' (aten::no_such_operator" in error


def test_bags_of_an_embedding_begin_within_their_indices(capfd):
    """Where they do not, a GPU has no way back."""
    bags = torch.nn.EmbeddingBag(1000, 4)
    captured = capture(bags, (torch.arange(8), torch.arange(8)))
    ranks = _C.comm.make_local(1)
    table, _ = _C.profile.measure(captured.graph, captured.objects, [], ranks[0], [2, 4])
    assert table.node[0][0].forward_ns > 0
    assert "cannot time" not in capfd.readouterr().err


# Eight distinct signatures; fast and slow ranks shared them, and times were mixed.
@pytest.mark.parametrize(
    "sharing, counts", [([], [4, 4, 0]), ([0, 1], [4, 4, 0]), ([1], [0, 8, 0]), ([1, 2], [0, 4, 4])]
)
def test_ranks_share_the_work_and_agree_on_one_table(sharing, counts):
    size = 3 if sharing else 2
    ranks = _C.comm.make_local(size)
    counted, tables = [[], [], []], [None] * size

    def run(rank):
        tables[rank], _ = _C.profile.measure(
            small(),
            [],
            [[rank_free, 2 * rank_free] for rank_free in range(8)],
            ranks[rank],
            [2, 4],
            progress=lambda done, total: counted[rank].append((done, total)),
            ranks=sharing,
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({table.to_json() for table in tables}) == 1
    assert tables[0].node[3][1].saved_bytes == 6
    assert counted == [[(done + 1, count) for done in range(count)] for count in counts]


def test_profile_is_one_table_that_fits_the_graph():
    graph = small()
    table, _ = operators.profile(graph, [], _C.comm.make_local(1)[0], 8)
    _C.cost.verify(table, graph)
    assert table.rows == [2, 4, 8]
    assert _C.cost.CostTable.from_json(table.to_json()) == table
    assert table.node[0][2].saved_bytes == 8 * 8 * 4


def test_a_mixture_of_experts_is_measured_not_estimated(capfd):
    """torch's kernel of grouped products for fake tensors takes bfloat16 only."""
    pytest.importorskip("transformers")
    captured = capture(mixtral(), *language_ids(4, torch.Generator()))
    table, _ = operators.profile(
        captured.graph, captured.objects, _C.comm.make_local(1)[0], local_rows=4
    )
    assert "are estimated" not in capfd.readouterr().err
    grouped = [i for i, node in enumerate(captured.graph.nodes) if "_grouped_mm" in node.op]
    assert len(grouped) == 4
    assert all(table.node[i][0].backward_ns > 0 for i in grouped)


@pytest.mark.parametrize(
    ("local_rows", "expected"), [(1, [2, 4]), (2, [2, 4]), (3, [2, 3]), (4, [2, 4]), (9, [2, 5, 9])]
)
def test_rows_to_time_are_two_or_three_up_to_the_local_batch(local_rows, expected):
    assert operators.row_counts(local_rows) == expected


def test_a_scripted_function_is_timed_as_one_node():
    @torch.jit.script
    def scripted(x: torch.Tensor):
        for _ in range(3):
            x = torch.tanh(x)
        return x

    text = """graph "scripted"(%x) -> (%y)
  input x: float32[B, 8] apart(0)
  parameter w: float32[8] grad
  node scale = aten::mul.Tensor(%x, %w) -> %h
    result h: float32[B, 8] apart(0) grad
  node script = scripted(%h) -> %y scripted #0
    result y: float32[B, 8] apart(0) grad
"""
    graph = _C.ir.parse(text)
    table, _ = operators.profile(graph, [scripted], _C.comm.make_local(1)[0], 4)
    assert table.node[1][0].forward_ns > 0
    assert table.node[1][0].backward_ns > 0
    # Each tanh keeps its result.
    assert table.node[1][0].saved_bytes == 3 * 2 * 8 * 4
