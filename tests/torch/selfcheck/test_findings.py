"""What the user is told of a captured graph, once."""

import types

import pytest
import torch
from torch import nn

from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.selfcheck import findings

FRONT_ENDS = ["torchscript", "export"] if hasattr(_C.frontend, "Tracer") else ["export"]


class Returns(nn.Linear):
    """The loss by rows, and what ``what`` makes of it and of the rows."""

    def __init__(self, what):
        super().__init__(4, 2)
        self.what = what

    def forward(self, x):
        return self.what(super().forward(x).square().sum(1), x)


def told(model, x, ranks=2, front_end=None):
    """What is said of a call, on rank 0 of so many."""
    found = capture(model, (x,), front_end=front_end)
    findings.tell(found, "", [], types.SimpleNamespace(rank=0, size=ranks))


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_sum_beside_the_number_of_this_ranks_rows_is_a_warning(front_end, capfd):
    # A loop that divides one by the other had gradients twice as large on two ranks, unseen.
    model = Returns(lambda losses, x: {"loss": losses.sum(), "counts": [x.shape[0]]})
    told(model, torch.ones(3, 4), front_end=front_end)
    text = "a sum over the rows of all ranks, and output['counts'][0], which follows from"
    assert capfd.readouterr().err.count(text) == 1
    told(model, torch.ones(3, 4), ranks=1, front_end=front_end)
    assert "a sum over the rows" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "what",
    [
        lambda losses, x: (losses.mean(), x.shape[0]),
        lambda losses, x: (losses.sum(), x.shape[1]),
        lambda losses, x: (losses.mean(), losses.sum().detach(), x.shape[0]),
        lambda losses, x: (losses, x.shape[0]),
    ],
)
def test_other_numbers_are_none(what, capfd):
    told(Returns(what), torch.ones(3, 4))
    assert "a sum over the rows" not in capfd.readouterr().err


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x[:, 0].zero_()])
def test_arguments_that_forward_writes_are_a_warning(write, front_end, capfd):
    class Writes(nn.Linear):
        def forward(self, x):
            write(x)
            return super().forward(x)

    told(Writes(4, 2), torch.ones(3, 4), front_end=front_end)
    assert capfd.readouterr().err.count("forward() writes into its arguments: args[0]. It") == 1
    told(nn.Linear(4, 2), torch.ones(3, 4), front_end=front_end)
    assert "writes into" not in capfd.readouterr().err
