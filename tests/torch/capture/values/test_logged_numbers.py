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


def check_sizes(fits, message):
    if not fits:
        raise ValueError(message)


class Told(nn.Module):
    def __init__(self, tell):
        super().__init__()
        self.linear, self.tell, self.told = nn.Linear(4, 4), tell, []

    def forward(self, x):
        if self.tell is check_sizes:
            check_sizes(x.shape[1] == 4, f"{x.abs().sum()} of {x.mean().item():.2f}")
        elif self.tell is save_checkpoint:
            save_checkpoint(f"{x.abs().sum()}")
        else:
            self.tell(f"{x.abs().sum()}")
        return self.linear(x).square().mean()


@pytest.mark.parametrize("front_end", ["torchscript", "export"])
def test_a_number_in_the_message_of_a_check_is_needed_by_nobody(front_end):
    captured = capture(Told(check_sizes), (torch.ones(4, 4),), front_end=front_end)
    assert "sum" not in str(captured.graph)


def save_checkpoint(text):
    pass


@pytest.mark.parametrize("front_end", ["torchscript", "export"])
def test_a_number_that_goes_where_no_call_could_put_it_is_refused(front_end):
    with pytest.raises(TraceError, match="goes where a captured model cannot put it"):
        capture(Told(save_checkpoint), (torch.ones(4, 4),), front_end=front_end)
    with pytest.raises(TraceError, match="goes where a captured model cannot put it"):
        capture(Told([].append), (torch.ones(4, 4),), front_end=front_end)
