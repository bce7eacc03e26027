"""Sums of gradients over replicas while backward still runs; rank threads."""

import json
import threading

import pytest
import torch
from pipeline import make_plan, run_ranks

from pyrannc import _C, RaNNCError

WIDTH = 2561  # so that a weight is larger than a bucket, and both biases fit into one
GRAPH = f"""graph g(%x) -> (%loss)
  input x: float32[B, {WIDTH}] apart(0)
  parameter first: float32[{WIDTH}] grad
  parameter second: float32[{WIDTH}] grad
  parameter weight: float32[{WIDTH}, {WIDTH}] grad
  parameter unused: float32[7] grad
  node n0 = aten::add.Tensor(%x, %first, 1) -> %a
    result a: float32[B, {WIDTH}] apart(0) grad
  node n1 = Probe(%a) -> %b python #0
    result b: float32[B, {WIDTH}] apart(0) grad
  node n2 = aten::mm(%b, %weight) -> %c
    result c: float32[B, {WIDTH}] apart(0) grad
  node n3 = aten::add.Tensor(%c, %second, 1) -> %d
    result d: float32[B, {WIDTH}] apart(0) grad
  node n4 = Ignore(%d, %unused) -> %e python #1
    result e: float32[B, {WIDTH}] apart(0) grad
  node n5 = aten::mean(%e, none) -> %loss
    result loss: float32[] mean grad
"""
NODES = [f"n{i}" for i in range(6)]


class Ignore(torch.autograd.Function):
    """Takes a parameter and gives it a gradient on no rank, or only where ``gives`` says so."""

    gives = frozenset()

    @staticmethod
    def forward(ctx, x, parameter):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        here = threading.current_thread().name in Ignore.gives
        return gradient.clone(), torch.ones(7) if here else None


def probe(during_backward):
    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            during_backward()
            return gradient.clone()

    return Probe.apply


def make_call(communicator, micro_batches, during_backward, schedule="gpipe", **options):
    plan = make_plan(NODES, [[0, 1]], micro_batches, schedule=schedule)
    executor = _C.runtime.Executor(
        _C.ir.parse(GRAPH),
        [probe(during_backward), Ignore.apply],
        _C.plan.Plan.from_json(json.dumps(plan)),
        communicator,
        **options,
    )
    generator = torch.Generator().manual_seed(communicator.rank)
    parameters = [
        torch.randn(
            *((WIDTH, WIDTH) if name == "weight" else (7,) if name == "unused" else (WIDTH,)),
            generator=torch.Generator().manual_seed(len(name)),
        ).requires_grad_()
        for name in executor.parameter_names
    ]
    x = torch.randn(4, WIDTH, generator=generator)
    return executor, executor.forward([x], parameters, [], [4, 4], True)


def gradients_of(executor, call, factor=1.0):
    found = call.backward([torch.tensor(factor)])
    return dict(zip(executor.parameter_names, found, strict=False))


def test_a_bucket_is_on_its_way_while_the_backward_of_others_runs():
    first_tag = 2**24 - 256  # src/runtime/tags.h
    arrived, in_time = threading.Event(), []
    weight_numbers = WIDTH * WIDTH // 2  # rank 0 sends the first of two chunks first

    def one_rank(communicator):
        executor, call = make_call(
            communicator, 1, lambda: in_time.append(arrived.wait(timeout=10))
        )
        if communicator.rank == 0:
            with pytest.raises(RaNNCError, match="as expected"):
                gradients_of(executor, call)
            return in_time == [True]
        # This rank runs no backward: what arrives was sent while the other is in n1's. Buckets are
        # 0: second and unused, 1: weight, 2: first.
        communicator.receive(4 * weight_numbers, 0, first_tag + 1)
        arrived.set()
        communicator.abort("as expected")
        return True

    assert run_ranks(2, one_rank) == [True, True]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_gradients_are_views_of_their_bucket_and_equal_on_all_ranks(micro_batches, schedule):
    def one_rank(communicator):
        threading.current_thread().name = f"rank {communicator.rank}"
        executor, call = make_call(communicator, micro_batches, lambda: None, schedule)
        return gradients_of(executor, call)

    Ignore.gives = frozenset()
    first, second = run_ranks(2, one_rank)
    for name in ("first", "second", "weight"):
        assert torch.equal(first[name], second[name]), name
    assert first["unused"] is None and second["unused"] is None
    Ignore.gives = {"rank 1"}
    for found in run_ranks(2, one_rank):
        # Rank 0 has none of its own, and gets that of rank 1.
        assert torch.equal(found["unused"], torch.full((7,), float(micro_batches)))
        storage = found["second"].untyped_storage()
        assert storage.data_ptr() == found["unused"].untyped_storage().data_ptr()
        assert storage.nbytes() == 4 * (WIDTH + 7)
        assert found["weight"].untyped_storage().nbytes() == 4 * WIDTH * WIDTH


@pytest.mark.parametrize("bucket_bytes", [4 * WIDTH, 2**30])
def test_buckets_are_as_large_as_they_are_told_to_be(bucket_bytes):
    def one_rank(communicator):
        executor, call = make_call(communicator, 1, lambda: None, bucket_bytes=bucket_bytes)
        return gradients_of(executor, call)

    Ignore.gives = frozenset({"rank 0"})
    for found in run_ranks(2, one_rank):
        numbers = {n: found[n].untyped_storage().nbytes() // 4 for n in ("first", "weight")}
        if bucket_bytes == 2**30:
            assert set(numbers.values()) == {2 * WIDTH + WIDTH * WIDTH + 7}
        else:
            assert numbers == {"first": WIDTH, "weight": WIDTH * WIDTH}


TIED = """graph g(%x) -> (%loss)
  input x: float32[B, 8] apart(0)
  parameter tied: float32[8, 8] grad
  node n0 = aten::mm(%x, %tied) -> %a
    result a: float32[B, 8] apart(0) grad
  node n1 = aten::relu(%a) -> %b
    result b: float32[B, 8] apart(0) grad
  node n2 = Probe(%b) -> %c python #0
    result c: float32[B, 8] apart(0) grad
  node n3 = aten::mm(%c, %tied) -> %d
    result d: float32[B, 8] apart(0) grad
  node n4 = aten::mean(%d, none) -> %loss
    result loss: float32[] mean grad
"""


def tied_call(communicator, during_backward):
    plan = make_plan([f"n{i}" for i in range(5)], [[0], [1]], 1)
    executor = _C.runtime.Executor(
        _C.ir.parse(TIED),
        [probe(during_backward)],
        _C.plan.Plan.from_json(json.dumps(plan)),
        communicator,
    )
    weight = torch.arange(64.0).reshape(8, 8).div(64).requires_grad_()
    return executor.forward([torch.ones(2, 8)], [weight], [], [2, 2], True)


def test_a_tied_gradient_is_on_its_way_while_its_stage_still_runs():
    """The stage of rank 1 gives its part first; what is left there does not add to it."""
    first_tag = 2**24 - 256
    arrived, in_time = threading.Event(), []

    def one_rank(communicator):
        call = tied_call(communicator, lambda: in_time.append(arrived.wait(timeout=10)))
        if communicator.rank == 1:
            with pytest.raises(RaNNCError, match="as expected"):
                call.backward([torch.tensor(1.0)])
            return in_time == [True]
        # This rank runs no backward: of two chunks, rank 1 sends its own first.
        communicator.receive(4 * 32, 1, first_tag)
        arrived.set()
        communicator.abort("as expected")
        return True

    assert run_ranks(2, one_rank) == [True, True]


def test_a_tied_gradient_is_the_sum_over_its_stages():
    found = run_ranks(
        2, lambda comm: tied_call(comm, lambda: None).backward([torch.tensor(1.0)])[0]
    )
    weight = torch.arange(64.0).reshape(8, 8).div(64).requires_grad_()
    (torch.ones(4, 8).mm(weight).relu().mm(weight)).mean().backward()
    for gradient in found:
        assert torch.allclose(gradient, weight.grad)
    assert torch.equal(*found)
