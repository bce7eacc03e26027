"""What is guessed is logged at debug with what it concluded, and is on the page of settings."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pyrannc import log
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self._installed = False

    def forward(self, x, table, flags):
        self._installed = True
        scores = self.layer(x) + table.sum()
        return scores.masked_fill(flags.unsqueeze(1) > 0, -1e12)


@pytest.fixture
def lines(capfd):
    """The lines that a capture and its self-check log."""
    log.configure("debug")
    try:
        arguments = (torch.randn(3, 4), torch.randn(7), torch.tensor([1.0, 0.0, 1.0]))
        model = Model()
        assert check(model, capture(model, arguments), arguments, {}).ok
    finally:
        log.configure("warn")
    return capfd.readouterr().err


#: How a line begins, as on the page, and what it concludes.
GUESSES = {
    "guessed which inputs hold the": "3 rows of the batch in dimension 0: args[0], args[2]; which "
    "have no rows: args[1]",
    "guessed which changed attributes only say": "that something has been done once: _installed",
    "guessed which inputs of whole numbers are": "labels, masks or ids, which the self-check "
    "leaves as they are: args[2]",
    "guessed which outputs have entries that fill": "masks, and do not count as the largest "
    "(1e+09 and more): output",
}


@pytest.mark.parametrize("begin", GUESSES)
def test_a_guess_is_logged_and_stands_on_the_page(begin, lines):
    assert f"{begin} {GUESSES[begin]}\n" in lines
    assert f"| {begin} |" in PAGE.read_text()
