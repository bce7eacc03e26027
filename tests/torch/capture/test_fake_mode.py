"""Fake tensors look like what the operators return."""

import pytest
import torch

from pyrannc.capture.fake_mode import FakeMode


def offsets():
    return torch.tensor([2, 5, 8, 12], dtype=torch.int32)


def columns_first(*sizes, dtype):
    """The kernel takes any number of columns, here 41, when they are not next to each other."""
    return torch.ones(sizes, dtype=dtype).transpose(-1, -2)


GROUPED = {
    "groups of rows": lambda dtype: torch._grouped_mm(
        torch.ones(12, 24, dtype=dtype), columns_first(4, 41, 24, dtype=dtype), offsets()
    ),
    "groups of columns": lambda dtype: torch._grouped_mm(
        torch.ones(4, 10, 24, dtype=dtype), columns_first(12, 24, dtype=dtype), offsets()
    ),
    "groups of what is summed": lambda dtype: torch._grouped_mm(
        columns_first(12, 24, dtype=dtype), columns_first(41, 16, dtype=dtype)[:12], offsets()
    ),
    "whole matrices": lambda dtype: torch._grouped_mm(
        torch.ones(4, 10, 24, dtype=dtype), columns_first(4, 41, 24, dtype=dtype)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("what", GROUPED)
def test_grouped_products(what, dtype):
    real = GROUPED[what](dtype)
    with FakeMode():
        fake = GROUPED[what](dtype)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
