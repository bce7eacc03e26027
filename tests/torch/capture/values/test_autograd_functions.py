"""Custom autograd functions: their own backward is kept, however ``apply()`` is looked up.

From torch 2.14 on ``Function.apply`` is a method of C: replacing the Python one did nothing, so
torch's tracer crashed, and torch.export lost the backward.
"""

import pytest
import torch
from golden_graphs import FRONT_ENDS
from torch import nn

from pyrannc import TraceError
from pyrannc.capture.values import autograd_functions
from pyrannc.selfcheck import check


class Scaled(torch.autograd.Function):
    """Its gradient is not that of what it computes."""

    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor * 3, None


class ByScale(torch.autograd.Function):
    """As ``Scaled``, with a context that is filled afterwards, and defaults."""

    @staticmethod
    def forward(x, scale=None, factor=2.0):
        return x * factor if scale is None else x * scale * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[2]
        ctx.scaled = inputs[1] is not None

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor * 3, grad.sum(0) if ctx.scaled else None, None


class Inherited(Scaled):
    pass


class Two(torch.autograd.Function):
    """Results of which one has no gradient, and one is no tensor."""

    @staticmethod
    def forward(ctx, x, y):
        signs = y.sign()
        ctx.mark_non_differentiable(signs)
        return x + y, signs, 1.5

    @staticmethod
    def backward(ctx, grad, _signs, _number):
        return grad * 2, grad * 5


class OfLists(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, others):
        return x + others[0]

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


def two(apply, x, bias):
    total, signs, _ = apply(x, x * 2)
    return total * signs


CALLS = {
    "one argument": (Scaled, lambda apply, x, bias: apply(x)),
    "a scalar": (Scaled, lambda apply, x, bias: apply(x, 0.5)),
    "a class that inherits": (Inherited, lambda apply, x, bias: apply(x, 0.5)),
    "twice": (Scaled, lambda apply, x, bias: apply(apply(x, 0.5).relu(), 4.0)),
    "setup_context": (ByScale, lambda apply, x, bias: apply(x, bias)),
    "a default": (ByScale, lambda apply, x, bias: apply(x)),
    "a keyword": (ByScale, lambda apply, x, bias: apply(x, scale=bias, factor=0.5)),
    "several results": (Two, two),
}
KEPT = {name: function.apply for name, (function, _) in CALLS.items()}


class Model(nn.Module):
    def __init__(self, call, kept=None, with_gradient=True):
        super().__init__()
        self.first, self.bias = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.call, self.kept, self.with_gradient = call, kept, with_gradient

    def forward(self, x):
        function, call = self.call
        hidden = self.first(x)
        with torch.set_grad_enabled(self.with_gradient):
            called = call(self.kept or function.apply, hidden, self.bias)
        return called + hidden * self.bias


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("with_gradient", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("lookup", ["kept", "late"])
@pytest.mark.parametrize("name", CALLS)
def test_the_backward_is_the_users(front_end, name, lookup, with_gradient):
    torch.manual_seed(0)
    kept = KEPT[name] if lookup == "kept" else None
    model, x = Model(CALLS[name], kept, with_gradient), torch.randn(6, 4)
    found = FRONT_ENDS[front_end](model, (x,))
    assert f"= {CALLS[name][0].__name__}(" in found.graph.text(), found.graph.text()
    report = check.check(model, found, (x,), {})
    assert report.ok, report


def test_a_kept_one_with_a_list_of_tensors_is_right_or_an_error():
    apply = OfLists.apply
    model = Model((OfLists, lambda apply, x, bias: apply(x, [bias])), apply)
    x = torch.randn(6, 4)
    try:
        found = FRONT_ENDS["torchscript"](model, (x,))
    except TraceError as error:
        assert autograd_functions.apply_is_native
        assert "OfLists is called by an apply() that was looked up before" in str(error)
    else:
        assert check.check(model, found, (x,), {}).ok
