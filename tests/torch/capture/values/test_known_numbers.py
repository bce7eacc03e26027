"""A model may read numbers that are the same in every call, and no others."""

import pytest
import torch
from torch import nn

from pyrannc import TraceError
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check


class Reading(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.linear, self.read = nn.Linear(8, 8), read
        self.register_buffer("kept", torch.ones(8))

    def forward(self, x):
        found = self.linear(x)
        return found * 2 if self.read(self, x) else found


def read_all(model, x):
    padded = nn.functional.pad(torch.ones(x.shape, dtype=torch.long), (0, 3))
    return (padded[:, :4].unsqueeze(1) > 0).flatten().all().item()


KNOWN = {
    "of a mask of ones": read_all,
    "like the input": lambda m, x: (torch.zeros_like(x) > 0).any(),
    "of the number of rows": lambda m, x: torch.arange(len(x)).max().item() + 1 == len(x),
    "what a write gave": lambda m, x: not torch.ones(3, 3).masked_fill_(torch.eye(3) > 0, 0).all(),
    "where another tensor is written": lambda m, x: (
        torch.zeros(3).fill_(1),
        torch.ones(2).sum().item() == 2,
    )[1],
}


@pytest.mark.parametrize("what", KNOWN)
def test_what_depends_on_no_call_is_known(what):
    model, args = Reading(KNOWN[what]), (torch.randn(4, 8),)
    assert check(model, capture(model, args), args, {}).ok


def written(mask):
    mask[:, 0].fill_(0)
    return mask


def read_before(mask):
    column = mask[:, 0]
    mask.fill_(0)
    return column


UNKNOWN = {
    "of the input": lambda m, x: (x > 0).any(),
    "of a buffer": lambda m, x: (m.kept > 0).any(),
    "of a parameter": lambda m, x: (m.linear.weight > 0).any(),
    "random": lambda m, x: (torch.rand(3) > 0.5).any(),
    "random like the input": lambda m, x: (torch.rand_like(x) > 0.5).any(),
    "what is not filled": lambda m, x: (torch.empty(3) > 0.5).any(),
    "what is written": lambda m, x: written(torch.ones(3, 3)).all(),
    "what is written behind a view": lambda m, x: written(torch.ones(9).view(3, 3)).all(),
    "a view from before a write": lambda m, x: read_before(torch.ones(3, 3)).all(),
    "of the input and of ones": lambda m, x: (torch.ones_like(x) * x > 0).any(),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_a_call_decides_is_not_known(what):
    with pytest.raises(TraceError, match="the values of a tensor decide"):
        capture(Reading(UNKNOWN[what]), (torch.randn(4, 8),))
