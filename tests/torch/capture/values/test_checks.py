"""Checks of a model that only raise an error, or are for numbers that are not finite, are repeated
in each call. PYTEST_DONT_REWRITE: these assertions are looked for in the code."""

import pytest
import torch
from replay import replay
from torch import nn

from pyrannc import RaNNCError, TraceError
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check


def at_most(labels):
    if labels.max() >= 5:
        raise ValueError("no such label")


def asserted(labels):
    assert labels.max().item() < 5, "no such label"


def not_all(labels):
    if (labels < 0).any() or labels.max() > 4:
        raise ValueError("no such label")
    if not torch.all(labels < 5).item():
        problem = "no such label"
        raise ValueError(problem)


def both(labels):
    assert labels.dim() == 1 and (labels < 5).all() and labels.min() >= 0


class Checking(nn.Module):
    def __init__(self, look):
        super().__init__()
        self.layer, self.look = nn.Linear(4, 5), look

    def forward(self, x, labels):
        self.look(labels)
        return nn.functional.cross_entropy(self.layer(x), labels)


def call(rows=4):
    return torch.randn(rows, 4), torch.arange(rows) % 5


def with_a_number(labels):
    if labels is not None and labels.max() >= 5:
        raise ValueError("no such label")


@pytest.mark.parametrize("look", [with_a_number, at_most, asserted, not_all, both])
def test_a_check_passes_or_is_an_error(look):
    model, (x, labels) = Checking(look), call()
    captured = capture(model, (x, labels))
    found = check(model, captured, (x, labels), {})
    assert found.ok and found.rows_proved, found.skipped
    labels[2] = 5
    with pytest.raises(RaNNCError, match=r"a check of the model fails .*test_checks.py"):
        replay(captured, model, (x, labels), {})


class Clamping(nn.Module):
    """As DETR and T5 do, against numbers of float16 that overflow."""

    def __init__(self, clamp):
        super().__init__()
        self.layer, self.clamp = nn.Linear(4, 5), clamp

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.clamp(self.layer(x)), labels)


def unless_finite(x):
    if not torch.isfinite(x).all():
        x = x.clamp(-1e4, 1e4)
    return x


def where_infinite(x):
    if x.dtype == torch.float32 and (torch.isinf(x).any() or torch.isnan(x).any()):
        return x.clamp(-1e4, 1e4)
    return x


def joined(x):
    if torch.any(x.isinf() | x.isnan()):
        return x.clamp(-1e4, 1e4)
    else:
        x = x * 2
    return x


def where_finite(x):
    if x.isfinite().all():
        x = x * 2
    return x


@pytest.mark.parametrize("clamp", [unless_finite, where_infinite, joined, where_finite])
def test_what_is_for_numbers_that_are_not_finite_is_left_out_or_an_error(clamp):
    model, (x, labels) = Clamping(clamp), call()
    captured = capture(model, (x, labels))
    found = check(model, captured, (x, labels), {})
    assert found.ok and found.rows_proved, found.skipped
    x[2, 1] = float("inf")
    with pytest.raises(RaNNCError, match=r"numbers .* are no longer finite: `if .*test_checks.py"):
        replay(captured, model, (x, labels), {})


def goes_on(labels):
    if labels.max() >= 5:
        labels = labels.clamp(max=4)


def returns(labels):
    if labels.max() >= 5:
        if len(labels) > 2:
            return
        raise ValueError


def either(labels):
    assert labels.max() < 5 or labels.min() < 0


def elsewhere(labels):
    assert _is_large(labels)


def _is_large(labels):
    return bool(labels.max() >= 0)


def computed(labels):
    assert labels.max().item() + 1 < 6


def finite_and_more(labels):
    if labels.isfinite().all() and labels.max() < 5:
        labels.clamp_(max=4)


@pytest.mark.parametrize("look", [goes_on, returns, either, elsewhere, computed, finite_and_more])
def test_what_is_more_than_a_check_is_refused(look):
    with pytest.raises(TraceError, match="the values of a tensor decide"):
        capture(Checking(look), call())
