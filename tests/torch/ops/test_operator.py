"""What operators return, beside what the graph says of it."""

import torch
from torch import nn

from pyrannc.capture.model import capture
from pyrannc.selfcheck import check


class Averaged(nn.Module):
    """A momentum encoder, whose weights an operator writes that returns nothing."""

    def __init__(self):
        super().__init__()
        self.encoder, self.average = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            torch._foreach_lerp_([*self.average.parameters()], [*self.encoder.parameters()], 0.1)
        return self.encoder(x) - self.average(x)


def test_an_operator_on_lists_that_returns_nothing_writes_what_it_is_given():
    torch.manual_seed(0)
    model, x = Averaged(), torch.randn(4, 4)
    report = check.check(model, capture(model, (x,)), (x,), {})
    assert report.ok, report
