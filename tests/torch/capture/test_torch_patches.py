"""What a model does through attributes of torch's classes that are patched while it is captured."""

import pytest
import torch
from golden_graphs import FRONT_ENDS
from torch import nn

from pyrannc import TraceError
from pyrannc.selfcheck import check


class Of(nn.Module):
    """Two layers, whose weights ``function`` writes before they are used."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 4), nn.Linear(4, 2), function

    def forward(self, x):
        self.function(self.first, self.last)
        return self.last(self.first(x).tanh())


def of_limited_norm(first, last):
    """As in EEGNet: a limit that the first call may not reach."""
    first.weight.data = torch.renorm(first.weight.data, p=2, dim=0, maxnorm=0.1)


def averaged(first, last):
    """As in MoCo."""
    first.bias.data = first.bias.data * 0.9 + last.weight.data.sum() * 0.1


def kept_and_put_back(first, last):
    kept = first.weight.data.clone()
    first.weight.data = last.weight.data.repeat(2, 2)[:, :4]
    first.weight.data = first.weight.data + kept


def masked(first, last):
    """As in PixelCNN; Python puts back what it has multiplied."""
    first.weight.data *= first.weight.new_ones(4, 4).tril()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("write", [of_limited_norm, averaged, kept_and_put_back, masked])
def test_what_is_put_into_data_is_written_in_every_call(front_end, write):
    torch.manual_seed(0)
    model, x = Of(write), torch.randn(6, 4)
    found = FRONT_ENDS[front_end](model, (x,))
    assert "writes" in found.graph.text()
    report = check.check(model, found, (x,), {})
    assert report.ok, report


def back(first, last):
    """As in binary networks; a copy is what it takes."""
    kept = first.weight.data
    first.weight.data = kept.sign()
    first.weight.data = kept


def swapped(first, last):
    kept = first.weight.data
    first.weight.data = last.weight.data.repeat(2, 1)
    last.weight.data = kept[:2]


def halved(first, last):
    first.weight.data = first.weight.data.half()


def given_memory(first, last):
    with torch.no_grad():
        first.weight.set_(first.weight * 0.5)


def of_the_step_before(first, last):
    if first.weight.grad is not None:
        first.weight.data.add_(first.weight.grad)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize(
    "write, message",
    [
        (back, "uses the one that was there before, which"),
        (swapped, "uses the one that was there before, which"),
        (halved, "torch.float16.* into the .data of one of torch.float32"),
        (of_the_step_before, r"gradient of a tensor \(.grad\), which is that of an earlier"),
        (given_memory, r"memory of another one \(set_\(\)\)"),
    ],
)
def test_what_a_graph_cannot_do_is_an_error_that_names_the_line(front_end, write, message):
    with pytest.raises(TraceError, match=rf"(?s)test_torch_patches.py:\d+\): .*{message}"):
        FRONT_ENDS[front_end](Of(write), (torch.randn(6, 4),))
