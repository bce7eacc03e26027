"""Parameters that forward() makes or replaces are an error that names them, by both front ends."""

import pytest
import torch
from torch import nn

from pyrannc import TraceError
from pyrannc.capture.model import capture


class Codebook(nn.Module):
    """As of a VQ-VAE, with averages that forward() writes."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(4, 4), change
        self.average = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = self.linear(x)
        self.change(self, y.detach().mean(0))
        return y * self.average


def replaced(m, mean):
    m.average = nn.Parameter(0.9 * m.average + 0.1 * mean)


def replaced_below(m, mean):
    m.linear.bias = nn.Parameter(mean)


def replaced_with_its_module(m, mean):
    m.linear = nn.Linear(4, 4)


def made(m, mean):
    if not hasattr(m, "scale"):
        m.scale = nn.Parameter(mean)


REFUSED = {
    replaced: r"replaces the parameter 'average'[\s\S]*`self.average.copy_\(...\)`[\s\S]*a buffer",
    replaced_below: r"replaces the parameter 'linear.bias'",
    replaced_with_its_module: r"replaces the parameter 'linear.weight'",
    made: r"makes the parameter 'scale'[\s\S]*Make it in __init__\(\)",
}


@pytest.mark.parametrize("front_end", ["torchscript", "export"])
@pytest.mark.parametrize("change", REFUSED)
def test_a_parameter_that_forward_makes_is_named(change, front_end):
    with pytest.raises(TraceError, match=REFUSED[change]):
        capture(Codebook(change), (torch.ones(6, 4),), front_end=front_end)


def written(m, mean):
    with torch.no_grad():
        m.average.lerp_(mean, 0.1)


def put_back(m, mean):
    before = m._parameters["average"]
    m.average = nn.Parameter(mean)
    m._parameters["average"] = before


@pytest.mark.parametrize("front_end", ["torchscript", "export"])
@pytest.mark.parametrize("change", [written, put_back])
def test_one_that_forward_writes_or_puts_back_is_captured(change, front_end):
    capture(Codebook(change), (torch.ones(6, 4),), front_end=front_end)
