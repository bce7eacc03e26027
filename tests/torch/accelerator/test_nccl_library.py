"""The stand-in NCCL moves and sums on the stand-in device, and refuses what may hang on a real one.

Ranks are threads, with a device each.
"""

import contextlib
import os
import threading
import time

import pytest
import standin
import torch
from nccl import (
    BFLOAT16,
    FILE,
    FLOAT32,
    FLOAT64,
    IN_PROGRESS,
    NO_COLOR,
    UINT8,
    Nccl,
    NcclError,
)  # fmt: skip

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} was not built")
DEADLINE_S = 20


@pytest.fixture(scope="module")
def nccl():
    os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")  # read at the first call
    return Nccl()


class Rank:
    """One rank's thread, its device, stream and communicator."""

    def __init__(self, nccl, rank, comm):
        self.nccl, self.rank, self.comm = nccl, rank, comm
        self.stream = standin.Stream(rank)

    def tensor(self, numbers, dtype=torch.float32):
        made = torch.tensor(numbers, dtype=dtype, device=f"standin:{self.rank}")
        self.stream.wait_stream(standin.current_stream(self.rank))
        return made

    def send(self, tensor, peer, count=None, comm=None):
        count = tensor.nbytes if count is None else count
        comm = comm or self.comm
        self.nccl.Send(tensor.data_ptr(), count, UINT8, peer, comm, self.handle)
        return self.nccl.settle(comm)

    def receive(self, tensor, peer, comm=None):
        comm = comm or self.comm
        self.nccl.Recv(tensor.data_ptr(), tensor.nbytes, UINT8, peer, comm, self.handle)
        return self.nccl.settle(comm)

    def sum(self, tensor, type=FLOAT32, comm=None):
        address = tensor.data_ptr()
        comm = comm or self.comm
        self.nccl.AllReduce(address, address, tensor.numel(), type, 0, comm, self.handle)

    @property
    def handle(self):
        return self.stream.native_handle

    def read(self, tensor):
        standin.current_stream(self.rank).wait_stream(self.stream)
        return tensor.cpu().tolist()

    def wait_for_error(self):
        end = time.monotonic() + DEADLINE_S
        while not (text := self.nccl.last_error(self.comm)):
            assert time.monotonic() < end, "no error came"
            time.sleep(0.001)
        return text


def run(nccl, function, ranks=2):
    """``function(rank)`` on each, and what it returns; the first exception is raised."""
    unique_id, results, errors = nccl.unique_id(), [None] * ranks, []

    def work(index):
        try:
            standin.set_device(index)
            comm = nccl.start(unique_id, index, ranks)
            results[index] = function(Rank(nccl, index, comm))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def test_messages_sums_and_gathers(nccl):
    def work(rank):
        other = 1 - rank.rank
        big = rank.tensor(torch.arange(100_000.0).tolist())  # more than a channel holds
        got = torch.zeros_like(big)
        small = rank.tensor([1.0 + rank.rank, 2.0])
        half = rank.tensor([256.0, 1.0], torch.bfloat16)
        pieces = rank.tensor([0.0] * 4)
        part = rank.tensor([0.0])
        if rank.rank == 0:
            rank.send(big, other)
        else:
            rank.receive(got, other)
        rank.nccl.AllGather(small.data_ptr(), pieces.data_ptr(), 2, FLOAT32, rank.comm, rank.handle)
        rank.nccl.ReduceScatter(
            small.data_ptr(), part.data_ptr(), 1, FLOAT32, 0, rank.comm, rank.handle
        )
        rank.sum(small)
        rank.sum(half, BFLOAT16)
        result = [rank.read(each) for each in (got, small, half, pieces, part)]
        rank.nccl.CommAbort(rank.comm)
        return result

    first, second = run(nccl, work)
    assert second[0] == torch.arange(100_000.0).tolist()
    for found in (first, second):
        assert found[1:4] == [[3.0, 4.0], [512.0, 2.0], [1.0, 2.0, 2.0, 2.0]]
    assert (first[4], second[4]) == ([3.0], [4.0])


@pytest.mark.usefixtures("nccl_environment")
def test_connections_take_memory_until_their_communicator_is_aborted(nccl):
    os.environ["STANDIN_NCCL_CONNECTION_MIB"] = "8"

    def work(rank):
        def beside_torch():
            free, total = torch.accelerator.get_memory_info(rank.rank)
            return (total - free - torch.accelerator.memory_reserved(rank.rank)) >> 20

        numbers = rank.tensor([1.0])
        pass_on = rank.send if rank.rank == 0 else rank.receive
        before, taken = beside_torch(), []
        for call in (pass_on, pass_on, lambda *_: rank.sum(numbers), lambda *_: rank.sum(numbers)):
            call(numbers, 1 - rank.rank)
            taken.append(beside_torch() - before)
        rank.read(numbers)
        rank.nccl.CommAbort(rank.comm)
        return [*taken, beside_torch() - before]

    assert run(nccl, work) == [[8, 8, 16, 16, 0]] * 2


def test_split_and_a_message_to_oneself_in_a_group(nccl):
    def work(rank):
        pair = rank.nccl.split(rank.comm, 0 if rank.rank < 2 else NO_COLOR, key=-rank.rank)
        own, other = rank.tensor([7.0]), rank.tensor([0.0])
        rank.nccl.GroupStart()
        rank.nccl.Send(own.data_ptr(), 4, UINT8, rank.rank, rank.comm, rank.handle)
        rank.nccl.Recv(other.data_ptr(), 4, UINT8, rank.rank, rank.comm, rank.handle)
        rank.nccl.GroupEnd()
        rank.nccl.settle(rank.comm)
        if rank.rank < 2:
            rank.sum(own, comm=pair)
        return bool(pair), rank.read(own), rank.read(other)

    assert run(nccl, work, ranks=3) == [
        (True, [14.0], [7.0]), (True, [14.0], [7.0]), (False, [7.0], [7.0])
    ]  # fmt: skip


def test_a_send_ends_with_its_receive(nccl):
    """Unless messages are buffered, which NCCL does not promise."""
    received = threading.Event()

    def work(rank):
        tensor = rank.tensor([1.0])
        if rank.rank == 1:
            time.sleep(0.2)
            received.set()
            return rank.receive(tensor, 0)
        rank.send(tensor, 1)
        rank.stream.synchronize()
        return received.is_set()

    assert run(nccl, work)[0] is True
    os.environ["STANDIN_NCCL_BUFFERED"] = "1"
    received.clear()
    try:
        assert run(nccl, work)[0] is False
    finally:
        del os.environ["STANDIN_NCCL_BUFFERED"]


def error_of(nccl, first, second):
    """What both ranks read when they do these two things."""

    def work(rank):
        with contextlib.suppress(NcclError):  # of the one that came later
            (first if rank.rank == 0 else second)(rank)
        return rank.wait_for_error()

    texts = set(run(nccl, work))
    assert len(texts) == 1, texts
    return texts.pop()


def test_different_counts(nccl):
    text = error_of(
        nccl,
        lambda rank: rank.send(rank.tensor([1.0, 2.0]), 1),
        lambda rank: rank.receive(rank.tensor([0.0]), 0),
    )
    assert "ncclSend(8 of type 1" in text
    assert "ncclRecv(4 of type 1" in text


def test_different_types(nccl):
    text = error_of(
        nccl,
        lambda rank: rank.sum(rank.tensor([1.0]), FLOAT32),
        lambda rank: rank.sum(rank.tensor([1.0], torch.float64), FLOAT64),
    )
    assert "ncclAllReduce(1 of type 7" in text
    assert "ncclAllReduce(1 of type 8" in text


def test_different_order(nccl):
    def first(rank):
        rank.send(rank.tensor([1.0]), 1)
        rank.sum(rank.tensor([1.0]))

    def second(rank):
        rank.sum(rank.tensor([1.0]))
        rank.receive(rank.tensor([1.0]), 0)

    text = error_of(nccl, first, second)
    assert "ncclSend" in text
    assert "ncclAllReduce" in text


def test_two_sends_to_each_other(nccl):
    text = error_of(
        nccl,
        lambda rank: rank.send(rank.tensor([1.0]), 1),
        lambda rank: rank.send(rank.tensor([1.0]), 0),
    )
    assert text.count("ncclSend") == 2


def test_a_group_on_one_side(nccl):
    def grouped(rank):
        tensor = rank.tensor([1.0])
        rank.nccl.GroupStart()
        rank.send(tensor, 1)
        rank.send(tensor, 1)
        rank.nccl.GroupEnd()

    def alone(rank):
        rank.receive(rank.tensor([1.0]), 0)
        rank.receive(rank.tensor([1.0]), 0)

    assert "in a group as 1 of 2" in error_of(nccl, grouped, alone)


def test_different_order_over_two_communicators(nccl):
    """From 2.26 on launches are ordered as the host issues them, so this may hang."""

    def work(rank):
        other = rank.nccl.split(rank.comm, 0, rank.rank)
        tensors = rank.tensor([1.0]), rank.tensor([2.0])
        comms = (rank.comm, other) if rank.rank == 0 else (other, rank.comm)
        try:
            for tensor, comm in zip(tensors, comms, strict=True):
                rank.sum(tensor, comm=comm)
        except NcclError:
            pass  # the one that came later
        return rank.wait_for_error()

    text = run(nccl, work)[0]
    assert "communicator 0" in text
    assert "communicator 16" in text


def test_memory_of_the_host(nccl):
    host = torch.ones(1)
    with pytest.raises(NcclError, match="memory that is not the device's"):
        run(nccl, lambda rank: rank.sum(host), ranks=1)


def test_use_before_it_is_ready(nccl):
    standin.set_device(0)
    comm = nccl.start(nccl.unique_id(), 0, 2, settle=False)  # the other never comes
    tensor = torch.ones(1, device="standin:0")
    with pytest.raises(NcclError, match="before it is ready"):
        Rank(nccl, 0, comm).sum(tensor)
    nccl.CommAbort(comm)


def test_use_after_abort(nccl):
    def work(rank):
        rank.nccl.CommAbort(rank.comm)
        rank.sum(rank.tensor([1.0]))

    with pytest.raises(NcclError, match="after ncclCommAbort"):
        run(nccl, work, ranks=1)


def test_a_call_while_the_one_before_is_in_progress(nccl):
    def work(rank):
        if rank.rank == 1:
            return None
        tensor = rank.tensor([1.0])
        result = rank.nccl.Send(tensor.data_ptr(), 4, UINT8, 1, rank.comm, rank.handle)
        assert result == IN_PROGRESS  # it connects
        rank.nccl.Send(tensor.data_ptr(), 4, UINT8, 1, rank.comm, rank.handle)

    with pytest.raises(NcclError, match="in progress"):
        run(nccl, work)


def test_two_threads_at_once(nccl):
    def work(rank):
        tensor = rank.tensor([1.0])
        failures, meet = [], threading.Barrier(2)  # or one may be through before the other begins

        def many():
            try:
                for _ in range(60_000):  # until they do meet in there
                    meet.wait()
                    rank.sum(tensor)
            except NcclError as error:
                failures.append(str(error))
                meet.abort()
            except threading.BrokenBarrierError:
                assert failures  # of the other thread

        threads = [threading.Thread(target=many) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    failures = run(nccl, work, ranks=1)[0]
    assert any("while another thread is in ncclAllReduce" in text for text in failures)


def test_abort_ends_what_waits_on_the_device(nccl):
    def work(rank):
        if rank.rank == 0:
            rank.receive(rank.tensor([1.0]), 1)
            rank.nccl.CommAbort(rank.comm)
            rank.stream.synchronize()

    run(nccl, work)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("version:1:22703", r"Mismatched NCCL version detected: rank . and rank . have"),
        ("world:1:3", r"rank . and rank . join . and . ranks"),
    ],
)
def test_other_versions_and_other_worlds(nccl, fault, told):
    os.environ["STANDIN_NCCL_FAULT"] = fault
    try:
        with pytest.raises(NcclError, match=told):
            run(nccl, lambda rank: None)
    finally:
        del os.environ["STANDIN_NCCL_FAULT"]
    assert nccl.version() == 23004


def test_nothing_is_left_on_the_machine(nccl):
    run(nccl, lambda rank: rank.nccl.split(rank.comm, 0))
    mine = f"standin-nccl-{os.getpid()}-"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(mine)]
