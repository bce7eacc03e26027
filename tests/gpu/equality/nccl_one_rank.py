"""NCCL with one rank: start under a deadline, a message to itself in a group, collectives, split,
abort. By ctypes, so that nothing but the library and the device has part in it."""

import ctypes
import time

import device
import nccl
import torch
from report import Report

from pyrannc import _C

COUNT = 1000


class Rank:
    """Calls of the library, its communicator of one rank, and a stream with a source of numbers."""

    def __init__(self, place, figures):
        file = str(nccl.FILE) if device.NAME == "standin" else _C.comm.find_nccl()[0]
        self.calls = nccl.Nccl(file)
        figures["version"] = _C.comm.nccl_version_text(self.calls.version())
        begin = time.monotonic()
        self.comm = self.calls.start(self.calls.unique_id(), 0, 1)
        figures["start ms"] = round(1e3 * (time.monotonic() - begin), 1)
        self.stream = device.new_stream(place)
        self.handle = ctypes.c_void_p(device.handle_of(self.stream))
        self.numbers = torch.arange(float(COUNT), device=place)

    def gives_the_same(self, call):
        """``call(source, target)`` with addresses; what it writes are the numbers again."""
        target = torch.zeros_like(self.numbers)
        self.stream.wait_stream(device.module().current_stream())
        call(self.numbers.data_ptr(), target.data_ptr())
        self.stream.synchronize()
        assert torch.equal(target.cpu(), self.numbers.cpu()), "other numbers"

    def message(self, source, target):
        calls, bytes_ = self.calls, self.numbers.nbytes
        calls.GroupStart()
        calls.Send(source, bytes_, nccl.UINT8, 0, self.comm, self.handle)
        calls.Recv(target, bytes_, nccl.UINT8, 0, self.comm, self.handle)
        calls.GroupEnd()
        calls.settle(self.comm)

    def all_reduce(self, source, target):
        self.calls.AllReduce(source, target, COUNT, nccl.FLOAT32, 0, self.comm, self.handle)
        self.calls.settle(self.comm)

    def reduce_scatter(self, source, target):
        self.calls.ReduceScatter(source, target, COUNT, nccl.FLOAT32, 0, self.comm, self.handle)
        self.calls.settle(self.comm)

    def all_gather(self, source, target):
        self.calls.AllGather(source, target, COUNT, nccl.FLOAT32, self.comm, self.handle)
        self.calls.settle(self.comm)

    def split(self, source, target):
        """A part of the communicator is one; this one is ended afterwards."""
        other = self.calls.split(self.comm, 0)
        self.calls.AllGather(source, target, COUNT, nccl.FLOAT32, other, self.handle)
        self.calls.settle(other)
        self.stream.synchronize()
        self.calls.CommAbort(other)


def main():
    report = Report()
    place = device.start()
    rank = None
    with report.case("start"):
        rank = Rank(place, report.figures)
    if rank is None:
        return
    for call in (rank.message, rank.all_reduce, rank.reduce_scatter, rank.all_gather, rank.split):
        with report.case(call.__name__.replace("_", " ")):
            rank.gives_the_same(call)
    with report.case("abort"):
        rank.calls.CommAbort(rank.comm)


if __name__ == "__main__":
    main()
