"""Copies between host and device, as CUDA's with pinned and pageable memory."""

import time

import pytest
import standin
import torch


def test_pinned_memory_is_read_when_the_copy_runs():
    source = torch.ones(3).pin_memory()
    assert source.is_pinned()
    with standin.held():
        late = source.to("standin", non_blocking=True)
        source.fill_(5)  # the mistake
    assert late.tolist() == [5, 5, 5]


def test_pageable_memory_is_read_at_once():
    source = torch.ones(3)
    assert not source.is_pinned()
    with standin.held():
        late = source.to("standin", non_blocking=True)
        source.fill_(5)
    assert late.tolist() == [1, 1, 1]


def test_pinned_memory_is_written_when_the_copy_runs():
    x = torch.ones(3, device="standin")
    target = torch.zeros(3).pin_memory()
    standin.synchronize()
    with standin.no_waits(), standin.held():
        target.copy_(x, non_blocking=True)
        assert target.tolist() == [0, 0, 0]  # who reads now reads too early
    standin.synchronize()
    assert target.tolist() == [1, 1, 1]


def test_pinned_memory_under_a_copy_is_not_given_to_others():
    x = torch.ones(1003, device="standin")  # a size that no other test uses
    standin.synchronize()
    with standin.held():
        target = torch.zeros(1003).pin_memory()
        target.copy_(x, non_blocking=True)
        address = target.data_ptr()
        del target
        other = torch.zeros(1003).pin_memory()
        assert other.data_ptr() != address
    standin.synchronize()
    assert torch.zeros(1003).pin_memory().data_ptr() == address


def test_copies_that_block_are_counted():
    x = torch.ones(3, device="standin")
    standin.clear_counts()
    x.cpu()
    torch.zeros(3).copy_(x, non_blocking=True)  # pageable: CUDA waits, too
    torch.ones(3).to("standin")
    assert standin.waits() == {("main", "copy to host"): 2, ("main", "copy to device"): 1}


def test_dtypes_and_layouts_change_on_the_way():
    x = torch.arange(6).reshape(2, 3)
    y = torch.empty(3, 2, device="standin").copy_(x.t())
    assert torch.equal(y.cpu(), x.t().float())
    assert torch.equal(torch.empty(2, 3).copy_(y.t()), x.float())
    assert torch.equal(
        torch.zeros(2, 3, device="standin").copy_(torch.ones(3)).cpu(), torch.ones(2, 3)
    )


def test_links_are_as_slow_as_they_are_told_to_be():
    x = torch.ones(1 << 18, device="standin")
    standin.synchronize()
    standin.slow_links(bytes_per_s=1 << 25)
    begin = time.perf_counter()
    x.cpu()
    assert time.perf_counter() - begin >= 1 / 32


def test_a_copy_fails_when_it_is_told_to():
    x = torch.ones(4, device="standin")
    standin.fail("copy")
    with pytest.raises(RuntimeError, match="copy to host: a copy of 16 bytes failed"):
        x.cpu()


def test_memory_cannot_be_pinned_when_it_is_told_so():
    standin.fail("pinned")
    with pytest.raises(torch.OutOfMemoryError, match="the host cannot pin 16 bytes"):
        torch.ones(4).pin_memory()
