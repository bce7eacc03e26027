"""What the micro-batches of a call share: casts of parameters, and what no gradient reaches."""

import json

import pytest
import torch
from pipeline import plan_of_stages, run_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from pyrannc import _C

WIDTH = 64
STAGES = [["n2", "n3", "n5", "n6"], ["n8", "n9", "n10", "n11", "n12"]]
ROWS = 8


def graph_text(shared=True, written=False):
    """Weights cast to bfloat16, as under autocast: one is read twice, one in both stages, and there
    as it is, too. Not `shared`: type_as() casts to the same, and each micro-batch does it anew.
    `written`: forward() writes one of the weights.
    """

    def cast(source):
        return (
            f"aten::to.dtype(%{source}, 15, false, false, none)"
            if shared
            else (f"aten::type_as(%{source}, %narrow)")
        )

    write = ""
    if written:
        write = """  node write = aten::mul_.Scalar(%bias, 0.5) -> %written writes %bias
    result written: float32[64] shares %bias
"""
    bias_grad = "" if written else "grad"
    return f"""graph g(%x) -> (%loss)
  input x: float32[B, 64] apart(0)
  parameter weight: float32[64, 64] grad
  parameter bias: float32[64] {bias_grad}
  parameter tied: float32[64, 64] grad
  buffer narrow: bfloat16[1]
  buffer table: float32[64]
{write}  node n0 = {cast("weight")} -> %weight16
    result weight16: bfloat16[64, 64] grad
  node n1 = {cast("bias")} -> %bias16
    result bias16: bfloat16[64] {bias_grad}
  node n2 = aten::to.dtype(%x, 15, false, false, none) -> %x16
    result x16: bfloat16[B, 64] apart(0)
  node n3 = aten::linear(%x16, %weight16, %bias16) -> %a
    result a: bfloat16[B, 64] apart(0) grad
  node n4 = {cast("tied")} -> %tied16
    result tied16: bfloat16[64, 64] grad
  node n5 = aten::linear(%a, %tied16, none) -> %b
    result b: bfloat16[B, 64] apart(0) grad
  node n6 = aten::linear(%b, %weight16, none) -> %c
    result c: bfloat16[B, 64] apart(0) grad
  node n7 = aten::exp(%table) -> %scale
    result scale: float32[64]
  node n8 = aten::linear(%c, %tied16, none) -> %d
    result d: bfloat16[B, 64] apart(0) grad
  node n9 = aten::to.dtype(%d, 6, false, false, none) -> %e
    result e: float32[B, 64] apart(0) grad
  node n10 = aten::matmul(%e, %tied) -> %f
    result f: float32[B, 64] apart(0) grad
  node n11 = aten::mul.Tensor(%f, %scale) -> %g
    result g: float32[B, 64] apart(0) grad
  node n12 = aten::mean(%g, none) -> %loss
    result loss: float32[] mean grad
"""


def state_of(executor):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(sizes, generator=generator) / 8
        for name, sizes in [("weight", (64, 64)), ("bias", 64), ("tied", (64, 64)), ("table", 64)]
    }
    tensors["narrow"] = torch.zeros(1, dtype=torch.bfloat16)
    return tensors


def plan(ranks, micro_batches, schedule="gpipe", recompute=False):
    nodes = STAGES if len(ranks) > 1 else [[*STAGES[0], *STAGES[1]]]
    return plan_of_stages(nodes, ranks, micro_batches, recompute, schedule)


def make(text, plan, communicator):
    executor = _C.runtime.Executor(
        _C.ir.parse(text), [], _C.plan.Plan.from_json(json.dumps(plan)), communicator
    )
    state = state_of(executor)
    parameters = [state[name].clone() for name in executor.parameter_names]
    for name, parameter in zip(executor.parameter_names, parameters, strict=True):
        parameter.requires_grad_(
            f"parameter {name}: " in text
            and "grad" in next(line for line in text.splitlines() if f"parameter {name}: " in line)
        )
    return executor, parameters, [state[name].clone() for name in executor.buffer_names]


def train(text, plan, local_rows, calls=2):
    """What each rank finds: loss, then two gradients of each call of the parameters, by name."""
    x = torch.randn(sum(local_rows), WIDTH, generator=torch.Generator().manual_seed(1))

    def one_rank(communicator):
        begin = sum(local_rows[: communicator.rank])
        own = x[begin : begin + local_rows[communicator.rank]]
        executor, parameters, buffers = make(text, plan, communicator)
        found = []
        for _ in range(calls):
            call = executor.forward([own], parameters, buffers, local_rows, True)
            found.append(call.outputs[0])
            one = torch.ones(())
            for keep_graph in (True, False):
                found += call.backward([one], keep_graph)[: len(parameters)]
            found += [parameter.detach().clone() for parameter in parameters]
            found.append(executor.forward([own], parameters, buffers, local_rows, False).outputs[0])
        return found

    return run_ranks(len(local_rows), one_rank)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("ranks", "schedule", "local_rows"),
    [
        ([[0]], "gpipe", [8]),
        ([[0]], "1f1b", [7]),
        ([[0], [1]], "gpipe", [5, 3]),
        ([[0], [1]], "1f1b", [4, 4]),
        ([[0, 1]], "gpipe", [8, 1]),
        ([[0, 1], [2]], "1f1b", [6, 0, 1]),
    ],
)
def test_gradients_are_those_of_casts_in_each_micro_batch(
    ranks, schedule, local_rows, recompute, written
):
    own_plan = plan(ranks, 4, schedule, recompute)
    shared, apart = (train(graph_text(own, written), own_plan, local_rows) for own in (True, False))
    for ours, theirs in zip(shared, apart, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
    assert any(t is not None and t.any() for t in shared[0][1:3])


def held_bytes(text, micro_batches, recompute=False):
    """Between forward and backward."""
    (communicator,) = _C.comm.make_local(1, 20.0)
    executor, parameters, buffers = make(
        text, plan([[0]], micro_batches, recompute=recompute), communicator
    )
    x = torch.randn(ROWS, WIDTH)
    with _C.runtime.MemoryRecorder() as memory:
        call = executor.forward([x], parameters, buffers, [ROWS], True)
    call.backward([torch.ones(())])
    return memory.current_bytes


def test_a_further_micro_batch_holds_no_weights():
    weights = 2 * (2 * WIDTH * WIDTH + WIDTH)
    shared, apart = (
        [held_bytes(graph_text(own), count) for count in (1, 2, 8)] for own in (True, False)
    )
    assert shared[1] - shared[0] <= weights / 100 and shared[2] - shared[0] <= 7 * weights / 100
    assert apart[2] - apart[0] > 7 * weights * 0.9  # what is counted above would be seen


def test_recompute_holds_nothing_more_between_forward_and_backward():
    shared, apart = (held_bytes(graph_text(own), 8, recompute=True) for own in (True, False))
    assert shared <= apart


class Casts(TorchDispatchMode):
    """Counts casts of weights, to 16 bits and back."""

    def __init__(self):
        super().__init__()
        self.counted = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        casts = function is torch.ops.aten._to_copy.default
        self.counted += casts and args[0].shape == (WIDTH, WIDTH)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("micro_batches", [2, 8])
def test_a_weight_is_cast_once_in_a_call(micro_batches):
    (communicator,) = _C.comm.make_local(1, 20.0)
    executor, parameters, buffers = make(graph_text(), plan([[0]], micro_batches), communicator)
    with Casts() as casts:
        executor.forward([torch.randn(ROWS, WIDTH)], parameters, buffers, [ROWS], True)
    assert casts.counted == 2


def test_a_failing_step_leaves_nothing():
    (communicator,) = _C.comm.make_local(1, 20.0)
    text = graph_text().replace("aten::matmul(%e, %tied)", "aten::matmul(%e, %bias)")
    executor, parameters, buffers = make(text, plan([[0]], 4), communicator)
    x = torch.randn(ROWS, WIDTH)
    with _C.runtime.MemoryRecorder() as memory:
        for _ in range(2):
            with pytest.raises(RuntimeError):
                executor.forward([x, x], parameters, buffers, [ROWS], True)
    assert memory.current_bytes == 0
