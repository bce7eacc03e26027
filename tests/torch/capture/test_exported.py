"""The second front end gives the graphs of the first one, or computes the same; else it refuses."""

import difflib
import re

import pytest
import torch
from golden_graphs import ENTRIES, MODELS, golden, graph_text, library
from torch import nn
from torch.utils.checkpoint import checkpoint

from pyrannc import TraceError
from pyrannc.capture.model import capture
from pyrannc.selfcheck import check

HERE = re.escape(__file__)
#: Models of which it gives another graph, and why.
OTHERWISE = {
    "residual_cnn": "conv2d is an operator there, which calls convolution",
    "lstm_sequence_first": "the state that nn.LSTM begins with is not detached",
    "filled": "what is made by zeros_like() is not detached",
    "script_loop": "what a scripted function calls is in the graph",
    "stray_tensor": "constants of forward() are not marked as fresh",
    "mixtral": "masks are made of other operators",
    "experts": "what is made by empty_like() is not detached",
}


def exported(model, *args, **kwargs):
    return capture(model, args, kwargs, front_end="export")


@pytest.mark.parametrize("model", sorted(set(MODELS) - OTHERWISE.keys()))
def test_a_graph_is_the_committed_one(model):
    old = golden(model).read_text()
    new = graph_text("export", model)
    changes = difflib.unified_diff(old.splitlines(), new.splitlines(), model, "export", "", "", 1)
    assert old == new, "\n".join(changes)


@pytest.mark.parametrize("model", OTHERWISE)
def test_another_graph_computes_the_same(model):
    if library(model):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    entry = ENTRIES[model]
    made, (args, kwargs) = entry.build(), entry.inputs(4)
    found = capture(made, args, kwargs, entry.batch_dims, front_end="export")
    check.check(made, found, args, kwargs).raise_if_wrong()
    assert graph_text("export", model) != golden(model).read_text(), "take it off the list"


class Replaces(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen = self.seen + 1
        return super().forward(x)


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Scaled(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx, factor, x):
        ctx.factor = factor
        return factor * x, x.sum()

    @staticmethod
    def backward(ctx, gradient, _):
        return None, gradient * ctx.factor * 3


class Chosen(nn.Linear):
    """Looks for the elements that it computes with."""

    def forward(self, x):
        result = torch.zeros_like(x)
        for row in (x.sum(-1) > 0).nonzero().flatten():
            result[row] = super().forward(x[row])
        return result


class Of(nn.Linear):
    """A linear layer around a function of the layer and its input."""

    def __init__(self, function):
        super().__init__(4, 4)
        self.function = function

    def forward(self, x):
        return self.function(super().forward, x)


@torch.jit.script
def twice(x):
    return 2 * x


def under_autocast(linear, x):
    """Twice the same weights, of which autocast keeps one cast, and an operator for float32."""
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.mse_loss(linear(linear(x)), x, reduction="none").mean(1)


CAPTURED = {
    "a reentrant checkpoint": lambda linear, x: checkpoint(linear, linear(x), use_reentrant=True),
    "a custom function": lambda linear, x: Scaled.apply(2.0, linear(x))[0],
    "autocast in the model": under_autocast,
    "autocast that is turned off": lambda linear, x: torch.autocast("cpu", enabled=False)(linear)(
        x
    ),
    "a scripted function": lambda linear, x: linear(twice(x)),
    "a mask that selects": lambda linear, x: (linear(x) - x)[x > 0].square().mean(),
    "attributes of the storage": lambda linear, x: linear(x).data + x,
    "a constant of the batch size": lambda linear, x: linear(x) / torch.tensor([x.size(0)]),
    "the rows as a plain number": lambda linear, x: (
        linear(x).view(len(x), 2, 2) / float(len(x)) + torch.arange(int(x.size(0))).view(-1, 1, 1)
    ),
    "a list of rows": lambda linear, x: torch.stack(list(linear(x))),
}


@pytest.mark.parametrize("what", CAPTURED)
def test_it_computes_the_same_with(what):
    torch.manual_seed(0)
    model, x = nn.Sequential(Of(CAPTURED[what])), torch.randn(6, 4, requires_grad=True)
    report = check.check(model, exported(model, x), (x,), {})
    assert report.ok, report


def test_a_module_that_looks_for_elements_is_one_operator():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Chosen(4, 4), nn.Linear(4, 4))
    x = torch.randn(6, 4, requires_grad=True)
    found = exported(model, x)
    assert "Chosen" in found.graph.text()
    report = check.check(model, found, (x,), {})
    assert report.ok and report.rows_proved, report


def test_it_computes_the_same_under_autocast_of_the_caller():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = exported(model, x)
        assert check.check(model, found, (x,), {}).ok
    assert found.graph.values[found.graph.outputs[0]].dtype == "bfloat16"


def test_a_model_without_values_is_captured():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert "aten::batch_norm" in exported(model, torch.ones(2, 4)).graph.text()


@pytest.mark.parametrize(
    "function, message",
    [
        (
            lambda linear, x: linear(x) if x.sum() > 0 else x,
            "the values of a tensor decide what runs next",
        ),
        (lambda linear, x: Written.apply(linear(x)), "would lose what the autograd function Writt"),
        (
            lambda linear, x: linear(x) if x.size(0) > 4 else x,
            "other operators when the number of rows differs.*which is false at 5 rows",
        ),
        (
            lambda linear, x: linear(x) if x.size(0) % 2 else x,
            "other operators when the number of rows differs.*which is false at 2 rows",
        ),
        (lambda linear, x: linear(x) * (1.0 / len(x)), "depends on the batch size or on chance"),
        (lambda linear, x: linear(x) * (1.0 / x.size(0)), "Python float depends on the batch size"),
    ],
)
def test_a_refusal_says_why_and_where(function, message):
    with pytest.raises(TraceError, match=rf"(?s)^('0'|the model) \({HERE}:\d+\): .*{message}"):
        exported(nn.Sequential(Of(function)), torch.ones(3, 4))


def test_other_operators_at_another_plain_number_of_rows_are_an_error():
    told = rf"(?s)when the number of rows differs: operator 0 is aten::relu in '0' \({HERE}:"
    with pytest.raises(TraceError, match=told):
        exported(
            nn.Sequential(Of(lambda linear, x: linear(x) if len(x) > 4 else x.relu())),
            torch.ones(3, 4),
        )


@pytest.mark.parametrize("of_size", [lambda n: n * n, lambda n: n > 4])
def test_a_result_that_is_no_line_in_the_rows_is_refused(of_size):
    with pytest.raises(TraceError, match="result of the model depends on the batch size"):
        exported(Of(lambda linear, x: (linear(x), of_size(x.size(0)))), torch.ones(3, 4))


def test_what_autocast_casts_within_an_operator_is_refused():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TraceError, match="casts inside of"):
        exported(nn.LSTM(4, 4, batch_first=True), torch.ones(2, 3, 4))


def test_a_write_to_an_attribute_is_an_error_that_names_it():
    model = nn.Linear(4, 4)
    model.plain = torch.zeros(4)

    def forward(x):
        model.plain.add_(1)
        return nn.functional.linear(x, model.weight) + model.plain

    model.forward = forward
    with pytest.raises(TraceError, match="'plain' in place; register it with register_buffer"):
        exported(model, torch.ones(2, 4))


def test_a_buffer_that_is_replaced_is_written():
    model, x = Replaces(), torch.ones(2, 4)
    found = exported(model, x)
    assert "writes %seen" in found.graph.text()
    report = check.check(model, found, (x,), {})
    assert report.ok and "buffers" in report.largest


def test_sizes_that_depend_on_the_rows_are_lines_in_them():
    class Sizes(nn.Linear):
        def forward(self, x):
            return super().forward(x) / x.shape[0], 2 * x.shape[0] + 1

    found = exported(Sizes(4, 4), torch.ones(2, 4))
    assert "aten::div.Tensor(%linear, B)" in found.graph.text()
    _, count = found.unflatten([torch.ones(5, 4)], 5)
    assert count == 11


def test_a_result_may_hold_the_rows_as_a_plain_number():
    found = exported(Of(lambda linear, x: (linear(x), 2 * len(x) + 1)), torch.ones(2, 4))
    _, count = found.unflatten([torch.ones(5, 4)], 5)
    assert count == 11


def test_a_size_that_is_no_line_in_the_rows_is_refused():
    class Square(nn.Linear):
        def forward(self, x):
            return super().forward(x).new_zeros(x.shape[0] ** 2)

    with pytest.raises(TraceError, match=r"is 9, 25, 49 at 3, 5, 7 rows"):
        exported(Square(4, 4), torch.ones(2, 4))


def test_nothing_of_the_model_stays_changed():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    held, random = dict(model.named_parameters()), torch.get_rng_state()
    exported(model, torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), random)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(each is held[name] for name, each in model.named_parameters())
