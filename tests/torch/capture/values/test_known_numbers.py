"""A model may read numbers that are the same in every call, and no others."""

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule, TraceError
from pyrannc.capture.model import capture
from pyrannc.capture.values import known_numbers
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
    "random and not below 0": lambda m, x: torch.rand([]) < 0.0,
    "random and below 1": lambda m, x: torch.rand(()) < 1,
    "random and at least 0": lambda m, x: not (torch.rand([]) >= -1),
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
    "of a buffer that was written": lambda m, x: (m.kept.mul_(2) > 0).any(),
    "of a parameter": lambda m, x: (m.linear.weight > 0).any(),
    "random": lambda m, x: (torch.rand(3) > 0.5).any(),
    "random and perhaps not below": lambda m, x: torch.rand([]) < 0.25,
    "random and perhaps 0": lambda m, x: torch.rand([]) > 0.0,
    "random and no number": lambda m, x: torch.rand([]) >= float("nan"),
    "normal": lambda m, x: torch.randn([]) < 0.0,
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


def test_a_small_buffer_is_read_and_told():
    model = Reading(lambda m, x: (m.kept > 0).any())
    captured = capture(model, (torch.randn(4, 8),))
    assert captured.buffers_read == {"kept": model.kept.tolist()}
    model.kept = torch.ones(known_numbers.MOST_IN_BUFFER + 1)
    with pytest.raises(TraceError, match="the values of a tensor decide"):
        capture(model, (torch.randn(4, 8),))


def bound_of(h):
    """As NEFTune computes it, from sizes."""
    return 5 / torch.sqrt(torch.tensor(h.size(1) * 3))


class ReadByTorch(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(self.linear(x))


def test_a_number_that_torch_reads_itself_is_known():
    model = ReadByTorch(lambda h: nn.functional.hardtanh(h, -bound_of(h) / 9, bound_of(h) / 9))
    args = (torch.randn(4, 8),)
    assert check(model, capture(model, args), args, {}).ok


def test_one_that_depends_on_the_rows_is_an_error():
    model = ReadByTorch(lambda h: nn.functional.leaky_relu(h, torch.tensor(1 / h.size(0))))
    with pytest.raises(TraceError, match="a Python number"):
        capture(model, (torch.randn(4, 8),))


def test_bounds_of_random_numbers_may_be_tensors():
    def noisy(h):
        return torch.zeros_like(h).uniform_(bound_of(h), bound_of(h) * 2)

    model = nn.Sequential(ReadByTorch(noisy))
    with torch.no_grad():
        found = RaNNCModule(model, config=Config(calibrate=False))(torch.randn(400, 8))
    least = bound_of(found).item()
    assert least <= found.min().item() < found.max().item() <= 2 * least


def test_a_number_of_an_input_that_torch_reads_is_an_error():
    model = ReadByTorch(lambda h: nn.functional.leaky_relu(h, h.mean().detach()))
    with pytest.raises(TraceError, match="the values of a tensor decide"):
        capture(model, (torch.randn(4, 8),))
