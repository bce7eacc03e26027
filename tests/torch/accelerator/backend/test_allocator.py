"""Blocks of memory behave as those of CUDA's caching allocator, and are NaN when they are free."""

import faulthandler

import pytest
import standin
import torch

DEADLINE_S = 60  # against hangs


def floats(count, value=1.0):
    return torch.full((count,), value, device="standin")


def test_a_block_is_had_again_at_once_on_its_stream_and_not_on_another():
    x = floats(100)
    address = x.data_ptr()
    side = standin.Stream()
    del x
    with side:
        assert floats(100).data_ptr() != address
    assert floats(100).data_ptr() == address


def test_new_memory_is_nan():
    assert torch.empty(5, device="standin").isnan().all()
    assert torch.empty(2, dtype=torch.int64, device="standin").tolist() == [-1, -1]


def test_who_reads_a_block_that_was_freed_reads_nan():
    x = floats(4)
    standin.synchronize()
    side = standin.Stream()
    with standin.held(side):
        with side:
            late = x + 1  # the message that outlives its tensor
        del x
        standin.current_stream().synchronize()
    standin.synchronize()
    assert late.isnan().all()


def test_a_recorded_stream_keeps_a_block_until_it_has_passed():
    x = floats(4)
    address = x.data_ptr()
    standin.synchronize()
    side = standin.Stream()
    with standin.held(side):
        with side:
            late = x + 1
        x.record_stream(side)
        del x
        standin.current_stream().synchronize()
        assert floats(4).data_ptr() != address
    standin.synchronize()
    assert late.tolist() == [2, 2, 2, 2]
    assert floats(4).data_ptr() == address


def test_statistics_are_of_the_device():
    standin.clear_counts()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    elsewhere = torch.accelerator.memory_allocated(1)  # of tests before this one
    x = floats(1 << 20)
    assert torch.accelerator.memory_allocated() == before + (4 << 20)
    assert torch.accelerator.memory_reserved() >= 20 << 20
    assert torch.accelerator.memory_allocated(1) == elsewhere
    del x
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == before + (4 << 20)
    free, total = torch.accelerator.get_memory_info()
    assert total == 256 << 20
    assert total - free == torch.accelerator.memory_reserved()
    assert standin.waits() == {}


def test_no_more_than_there_is_can_be_had():
    with pytest.raises(torch.OutOfMemoryError, match="standin:0 is out of memory: 314572800 bytes"):
        torch.empty(300 << 20, dtype=torch.uint8, device="standin")
    half = torch.empty(150 << 20, dtype=torch.uint8, device="standin")
    del half  # of another size: its segment goes back first
    assert torch.empty(200 << 20, dtype=torch.uint8, device="standin").numel() == 200 << 20


def test_no_more_than_the_fraction_can_be_had():
    standin.set_per_process_memory_fraction(0.25)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="of 67108864 are in use"):
            torch.empty(100 << 20, dtype=torch.uint8, device="standin")
    finally:
        standin.set_per_process_memory_fraction(1.0)


def test_an_allocation_fails_when_it_is_told_to():
    standin.fail("allocation", nth=2)
    kept = floats(1)
    with pytest.raises(torch.OutOfMemoryError):
        floats(1)
    assert (kept + 1).tolist() == [2]


def test_memory_is_given_back_while_kernels_with_numbers_are_under_way():
    """torch holds the interpreter's lock while it waits for the device: as none of a GPU, no kernel
    needs it, for the number that it was given, either."""
    x = floats(4, 0.0)
    standin.set_delay(5000)
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    for _ in range(10):
        x += 1
        torch.accelerator.empty_cache()
    faulthandler.cancel_dump_traceback_later()
    assert x.tolist() == [10, 10, 10, 10]
