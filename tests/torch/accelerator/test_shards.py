"""Reduce-scatter and all-gather of flat tensors on the stand-in device, ranks as threads with a
device each, over every transport of a device's memory."""

import os
import re
import time

import pytest
import standin
import torch
from nccl import FILE
from pipeline import run_ranks

from pyrannc import _C, errors

pytestmark = [
    pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} was not built"),
    pytest.mark.usefixtures("nccl_environment"),
]
EACH = 3000  # elements of a shard
TRANSPORTS = {
    "staged": lambda host, device: _C.runtime.staged(host, device),
    "nccl": lambda host, device: _C.runtime.nccl(host, device, str(FILE)),
    "nccl on one stream": lambda host, device: _C.runtime.nccl(host, device, str(FILE), True),
}
CARELESS = "nccl, which forgets what it reads and writes"


def on_devices(ranks, transport, body, over=None, timeout_s=20.0):
    """``[body(comm, stream, device), ...]``, connected for shards of EACH elements of 8 bytes."""

    def one_rank(host):
        device = f"standin:{host.rank}"
        standin.set_device(host.rank)
        comm = TRANSPORTS[transport.removesuffix(CARELESS) or "nccl"](host, device)
        among = over or list(range(ranks))
        _C.runtime.connect_shards(comm, device, among, [8 * EACH * len(among)])
        if transport == CARELESS:
            comm = _C.comm.careless(comm, _C.comm.MessageMistake.forgets_sends)
        return body(comm, _C.runtime.device_stream(device), device)

    return run_ranks(ranks, one_rank, timeout_s)


def numbers(rank, ranks, dtype, device):
    """Small whole numbers, so that sums are exact in any dtype; made late, by the device."""
    values = torch.arange(ranks * EACH, device=device) % 13 + rank
    return values.to(dtype)


def both_ways(comm, stream, device, ranks, dtype=torch.float32):
    """The sum of all ranks' numbers by way of shards, on the host. Nobody keeps the tensors."""
    data = numbers(comm.rank, len(ranks), dtype, device)
    place = ranks.index(comm.rank)
    stream.wait(_C.runtime.start_reduce_scatter(data, comm, stream, ranks))
    mine = data[place * EACH : (place + 1) * EACH].clone()
    data.fill_(-1)
    data[place * EACH : (place + 1) * EACH] = mine
    stream.wait(_C.runtime.start_all_gather(data, comm, stream, ranks))
    return data.cpu()


def expected(ranks, dtype=torch.float32):
    return sum(numbers(rank, len(ranks), dtype, "cpu") for rank in ranks)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_are_summed_and_gathered(ranks, transport):
    standin.set_delay(500)
    among = list(range(ranks))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
        for found in on_devices(
            ranks, transport, lambda *rank, dtype=dtype: both_ways(*rank, among, dtype)
        ):
            assert torch.equal(found, expected(among, dtype))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shards_among_some_ranks(transport):
    among = [1, 3]
    results = on_devices(
        4,
        transport,
        lambda comm, *rest: comm.rank in among and both_ways(comm, *rest, among),
        among,
    )
    for rank in among:
        assert torch.equal(results[rank], expected(among))


def test_one_call_at_a_time_on_a_device():
    os.environ["STANDIN_NCCL_ONE_AT_A_TIME"] = "1"
    for found in on_devices(2, "nccl", lambda *rank: both_ways(*rank, [0, 1])):
        assert torch.equal(found, expected([0, 1]))


def test_nobody_of_the_host_waits_for_shards_over_nccl():
    standin.set_delay(500)

    def body(comm, stream, device):
        data = numbers(comm.rank, 2, torch.float32, device)
        comm.barrier()
        with standin.no_waits():
            for start in (_C.runtime.start_reduce_scatter, _C.runtime.start_all_gather):
                stream.wait(start(data, comm, stream, [0, 1]))
        comm.barrier()
        return data.cpu()

    for found in on_devices(2, "nccl", body):
        assert torch.equal(found, expected([0, 1]))


def left_alone(comm, stream, device):
    """Nobody keeps the tensor, nor what says when it is done; its memory is asked for again."""
    data = numbers(comm.rank, 2, torch.float32, device)
    stream.wait(_C.runtime.start_reduce_scatter(data, comm, stream, [0, 1]))
    result = torch.empty(2 * EACH, device=device)
    result[comm.rank * EACH : (comm.rank + 1) * EACH] = (
        data[comm.rank * EACH : (comm.rank + 1) * EACH]
    )  # fmt: skip
    before = result.cpu()[comm.rank * EACH : (comm.rank + 1) * EACH]
    with standin.held():  # until here is left, the message cannot begin
        started = torch.ones(2 * EACH, device=device)
        handle = _C.runtime.start_all_gather(started, comm, stream, [0, 1])
        del started
        del handle
        others = [torch.full((2 * EACH,), 7.0, device=device) for _ in range(4)]
    standin.synchronize()
    comm.barrier()
    return before, [each.cpu() for each in others]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_memory_is_kept_until_the_end_though_nobody_waits(transport):
    standin.set_delay(500)
    for rank, (before, others) in enumerate(on_devices(2, transport, left_alone)):
        assert torch.equal(before, expected([0, 1])[rank * EACH : (rank + 1) * EACH])
        for each in others:  # nobody has written into memory that was given to another
            assert torch.equal(each, torch.full((2 * EACH,), 7.0))


def test_memory_that_nobody_keeps_is_seen():
    """What comes last stays, the message or what others write: it is seen in some of the runs."""
    standin.set_delay(500)

    def is_overwritten():
        found = [each for _, others in on_devices(2, CARELESS, left_alone) for each in others]
        return not all(torch.equal(each, torch.full((2 * EACH,), 7.0)) for each in found)

    assert any(is_overwritten() for _ in range(20))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["start_reduce_scatter", "start_all_gather"])
def test_a_rank_that_does_not_come_is_an_error_at_the_deadline(name, transport):
    def body(comm, stream, device):
        if comm.rank == 1:
            return ""
        data = numbers(0, 2, torch.float32, device)
        try:
            getattr(_C.runtime, name)(data, comm, stream, [0, 1]).wait()
        except errors.CommError as error:
            return str(error)
        return "no error"

    begin = time.monotonic()
    text = on_devices(2, transport, body, timeout_s=1.0)[0]
    assert time.monotonic() - begin < 6
    assert re.search(r"waited 1 s for the flat tensor (from rank 1|over the ranks 0, 1)", text), (
        text
    )


@pytest.mark.parametrize("name", ["start_reduce_scatter", "start_all_gather"])
def test_a_copy_that_fails_is_an_error_of_the_operation(name):
    def body(comm, stream, device):
        data = numbers(comm.rank, 2, torch.float32, device)
        standin.synchronize()
        comm.barrier()
        if comm.rank == 0:
            standin.fail("copy")
        getattr(_C.runtime, name)(data, comm, stream, [0, 1]).wait()

    with pytest.raises((errors.CommError, RuntimeError), match=r"a copy of \d+ bytes failed"):
        on_devices(2, "staged", body)


def test_a_copy_that_fails_ends_ranks_that_wait_for_something_else():
    def body(comm, stream, device):
        data = numbers(comm.rank, 2, torch.float32, device)
        standin.synchronize()
        comm.barrier()
        if comm.rank == 0:
            standin.fail("copy")
            scattered = _C.runtime.start_reduce_scatter(data, comm, stream, [0, 1])
        comm.receive(4, 1 - comm.rank)  # each waits for the other, not for what fails
        scattered.wait()

    with pytest.raises((errors.CommError, RuntimeError), match=r"a copy of \d+ bytes failed"):
        on_devices(2, "staged", body, timeout_s=5.0)


def test_ranks_that_make_different_calls_are_told_which():
    def body(comm, stream, device):
        data = numbers(comm.rank, 2, torch.float32, device)
        name = "start_all_gather" if comm.rank else "start_reduce_scatter"
        getattr(_C.runtime, name)(data, comm, stream, [0, 1]).wait()

    with pytest.raises(errors.CommError, match=r"made nccl(ReduceS|AllG).*and rank \d nccl"):
        on_devices(2, "nccl", body, timeout_s=3.0)


def test_ranks_whose_sizes_differ_are_told_so():
    def body(comm, stream, device):
        data = torch.ones(4 + 2 * comm.rank, device=device)
        _C.runtime.start_all_gather(data, comm, stream, [0, 1]).wait()

    with pytest.raises(errors.CommError, match=r"2 .*3 |3 .*2 "):
        on_devices(2, "nccl", body, timeout_s=3.0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shards_that_are_not_equal_are_refused(transport):
    def body(comm, stream, device):
        data = torch.ones(3, device=device)
        with pytest.raises(_C.util.InternalError, match="do not fall into 2 equal parts"):
            _C.runtime.start_all_gather(data, comm, stream, [0, 1])

    on_devices(2, transport, body)
