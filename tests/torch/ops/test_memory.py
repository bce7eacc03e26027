"""The memory recorder, on sizes that are known."""

import threading

import torch

from pyrannc import _C

MIB = 2**20


def tensor(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8)


def test_peak_and_current_bytes_follow_allocations():
    with _C.runtime.MemoryRecorder() as memory:
        first = tensor(3)
        second = tensor(2)
        assert (memory.current_bytes, memory.peak_bytes) == (5 * MIB, 5 * MIB)
        del first
        assert (memory.current_bytes, memory.peak_bytes) == (2 * MIB, 5 * MIB)
        memory.reset_peak()
        assert memory.peak_bytes == 2 * MIB
        del second
    # The counts stay as they were when the recording ended.
    later = tensor(9)
    assert (memory.current_bytes, memory.peak_bytes) == (0, 2 * MIB)
    del later


def test_only_the_recording_thread_counts():
    with _C.runtime.MemoryRecorder() as memory:
        kept = []
        thread = threading.Thread(target=lambda: kept.append(tensor(1)))
        thread.start()
        thread.join()
        assert memory.current_bytes == 0


def test_what_backward_allocates_counts():
    weight = torch.randn(MIB // 4, requires_grad=True)
    with _C.runtime.MemoryRecorder() as memory:
        (weight * weight).sum().backward()
        assert weight.grad.nbytes == MIB
        assert MIB <= memory.current_bytes < MIB + 1024
        assert memory.peak_bytes >= 2 * MIB  # the product or its gradient besides
    weight.grad = None


def test_recorders_nest_and_both_count():
    with _C.runtime.MemoryRecorder() as outer:
        with _C.runtime.MemoryRecorder() as inner:
            kept = tensor(1)
        assert (outer.current_bytes, inner.current_bytes) == (MIB, MIB)
        more = tensor(2)
        assert (outer.current_bytes, inner.current_bytes) == (3 * MIB, MIB)
    del kept, more


def test_blocks_of_an_earlier_recording_do_not_count_when_they_go():
    # c10 remembers blocks that any recorder saw; the second one counted -4 MiB for this one.
    with _C.runtime.MemoryRecorder():
        old = tensor(4)
    with _C.runtime.MemoryRecorder() as memory:
        del old
        new = tensor(1)
        assert (memory.current_bytes, memory.peak_bytes) == (MIB, MIB)
    del new
