"""Errors of a capture say what to write, under the names that users know."""

import pytest
import torch
from torch import nn

from pyrannc import TraceError
from pyrannc.capture.model import capture


class Free(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function, self.layerdrop = nn.Linear(4, 4), function, 0.3

    def forward(self, x):
        return self.function(self, x)


def dropped(model, x):
    if torch.rand([]) < model.layerdrop:
        return x
    return model.linear(x)


def derived(model, x):
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(model.linear(x).sum(), x, create_graph=True)
    return found


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (dropped, r"keep = \(torch.rand\(\[\]\) >= self.layerdrop\)"),
        (derived, r"torch.autograd.grad\(y.sum\(\), x\)"),
        (lambda m, x: m.linear(x) if x.sum() > 0 else x, "torch.where"),
    ],
)
def test_an_error_has_the_code_to_write_and_a_public_name(function, remedy):
    with pytest.raises(TraceError, match=remedy) as raised:
        capture(Free(function), (torch.randn(3, 4),))
    assert type(raised.value).__qualname__ == "TraceError"
    assert "number of rows" not in str(raised.value)
