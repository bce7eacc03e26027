"""What becomes of numbers that forward() reads for a log, where no call could renew them."""

import pytest
import torch
from torch import nn

from pyrannc import TraceError
from pyrannc.capture.model import capture


class Kept(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.linear, self.read, self.last = nn.Linear(4, 4), read, None

    def forward(self, x):
        y = self.linear(x)
        self.last = self.read(y.detach())
        return y.square().mean()


@pytest.mark.parametrize(
    "read", [lambda y: y.mean(0).tolist(), lambda y: {"mean": [y.mean().tolist()]}]
)
def test_a_list_of_numbers_is_no_attribute_of_later_calls(read):
    """torch.export went on with it, and the attribute stayed what it was."""
    with pytest.raises(TraceError, match=r"numbers of a tensor .*'last'"):
        capture(Kept(read), (torch.ones(4, 4),), front_end="export")
