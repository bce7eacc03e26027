"""Sums, reduce-scatter and all-gather of flat tensors, as they are on the CPU."""

import pytest
import torch
from pipeline import run_ranks

from pyrannc import _C, errors

CPU = "cpu"


def test_shards_of_the_cpu_are_summed_and_gathered():
    def one_rank(comm):
        ranks, stream = list(range(comm.size)), _C.runtime.device_stream(CPU)
        data = torch.arange(12.0) + comm.rank
        stream.wait(_C.runtime.start_reduce_scatter(data, comm, stream, ranks))
        mine = slice(4 * comm.rank, 4 * comm.rank + 4)
        summed = data[mine].clone()
        data.fill_(-1)[mine] = summed
        stream.wait(_C.runtime.start_all_gather(data, comm, stream, ranks))
        total = torch.full((5,), 1 + comm.rank)
        stream.wait(_C.runtime.start_sum(total, comm, stream, ranks))
        return data, total

    for data, total in run_ranks(3, one_rank):
        assert torch.equal(data, 3 * torch.arange(12.0) + 3)
        assert torch.equal(total, torch.full((5,), 6))


def test_what_cannot_be_shared_is_an_error():
    [comm] = _C.comm.make_local(1)
    stream = _C.runtime.device_stream(CPU)
    with pytest.raises(errors.RaNNCError, match="cannot share a flat tensor of dtype Bool"):
        _C.runtime.start_sum(torch.ones(3, dtype=torch.bool), comm, stream, [0])
