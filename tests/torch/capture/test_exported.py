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
    "in_place": "constants of forward() are not marked as fresh",
    "filled": "what is made by zeros_like() is not detached",
    "script_loop": "what a scripted function calls is in the graph",
    "stray_tensor": "constants of forward() are not marked as fresh",
    "mixtral": "masks are made of other operators",
}
#: Models that it refuses, with a part of the message.
REFUSED = {
    "autocast": "leaves the casts of autocast out",
    "custom_function": "would lose the backward of the autograd function ScaledClamp",
    "experts": "torch.export refuses the model.*specialized it to be a constant",
    "selected_errors": "the values of a tensor decide how large a result is",
}


def exported(model, *args, **kwargs):
    return capture(model, args, kwargs, front_end="export")


@pytest.mark.parametrize("model", sorted(set(MODELS) - OTHERWISE.keys() - REFUSED.keys()))
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


@pytest.mark.parametrize("model", REFUSED)
def test_what_it_would_get_wrong_is_refused(model):
    entry = ENTRIES[model]
    args, kwargs = entry.inputs(4)
    with pytest.raises(TraceError, match=REFUSED[model]):
        capture(entry.build(), args, kwargs, entry.batch_dims, front_end="export")


class Reentrant(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


class Branches(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Replaces(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen = self.seen + 1
        return super().forward(x)


@pytest.mark.parametrize(
    "model, message",
    [
        (
            nn.Sequential(Reentrant(4, 4)),
            rf"^'0' \({HERE}:\d+\): .*would lose the backward of .*CheckpointFunction",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), Branches(4, 4)),
            rf"^'1' \({HERE}:\d+\): torch.export refuses the model",
        ),
        (nn.Linear(4, 4, device="meta"), "captures models with values"),
    ],
)
def test_a_refusal_says_why(model, message):
    with pytest.raises(TraceError, match=message):
        exported(model, torch.ones(2, 4))


def test_a_buffer_that_is_replaced_is_written():
    model, x = Replaces(), torch.ones(2, 4)
    found = exported(model, x)
    assert "writes %seen" in found.graph.text()
    report = check.check(model, found, (x,), {})
    assert report.ok and "buffers" in report.largest


def test_a_call_under_autocast_is_refused():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TraceError, match="autocast out"):
        exported(nn.Linear(4, 4), torch.ones(2, 4))


def test_sizes_that_depend_on_the_rows_are_lines_in_them():
    class Sizes(nn.Linear):
        def forward(self, x):
            return super().forward(x) / x.shape[0], 2 * x.shape[0] + 1

    found = exported(Sizes(4, 4), torch.ones(2, 4))
    assert "aten::div.Tensor(%linear, B)" in found.graph.text()
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
