"""Errors of a capture say what to write, under the names that users know."""

import pytest
import torch
from torch import nn

from pyrannc import _C, TraceError
from pyrannc.capture.model import capture

FRONT_ENDS = ["torchscript", "export"] if hasattr(_C.frontend, "Tracer") else ["export"]
needs_tracer = pytest.mark.skipif(
    len(FRONT_ENDS) == 1, reason="torch.export refuses the loop over such a list"
)


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


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.inner.hidden = nn.Linear(4, 4), [nn.Linear(4, 4)]

    def forward(self, x):
        return self.inner.hidden[0](self.inner(x))


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, lengths):
        means = torch.stack([x[i, :length].mean(0) for i, length in enumerate(lengths)])
        return self.linear(means) + x[:, 0]


class Mistyped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.lineal(x)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_layer_in_a_plain_list_is_named(front_end):
    with pytest.raises(TraceError, match=r"`inner.hidden\[0\].weight`, which is no param"):
        capture(Listed(), (torch.randn(3, 4),), front_end=front_end)


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.linear, self.kept = nn.Linear(4, 4), scale
        self.scale = lambda: scale[0] if isinstance(scale, list) else scale

    def forward(self, x):
        return self.linear(x) * self.scale()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize(
    "scale", [torch.ones(4, requires_grad=True), [nn.Parameter(torch.ones(4))]], ids=["own", "list"]
)
def test_a_trained_tensor_that_no_module_registers_is_refused(scale, front_end):
    with pytest.raises(TraceError, match="requires a gradient but is not a parameter of the model"):
        capture(Scaled(scale), (torch.randn(3, 4),), front_end=front_end)


def test_a_layer_in_a_plain_list_that_is_not_trained_may_be_a_constant():
    model = Listed()
    model.inner.hidden[0].requires_grad_(False)
    captured = capture(model, (torch.randn(3, 4),), front_end="export")
    assert len(captured.objects) == 2


@needs_tracer
def test_a_list_of_lengths_is_named():
    with pytest.raises(TraceError, match=r"args\[1\] is a list with a number for each of the 4 "):
        capture(Padded(), (torch.randn(4, 5, 4), [1, 2, 3, 4]), front_end="torchscript")


@pytest.mark.parametrize("frontend", FRONT_ENDS)
def test_an_error_that_is_not_of_sizes_has_no_hint_on_rows(frontend):
    with pytest.raises(TraceError, match="no attribute 'lineal'") as raised:
        capture(Mistyped(), (torch.randn(4, 4),), front_end=frontend)
    assert " rows" not in str(raised.value)
