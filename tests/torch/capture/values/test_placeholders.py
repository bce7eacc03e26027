"""What goes into the places of a mask is what eager mode puts there, or an error counts both."""

import pytest
import torch
from replay import replay
from torch import nn

from pyrannc import RaNNCError
from pyrannc.capture.model import capture
from pyrannc.selfcheck.check import check


class Captioned(nn.Module):
    """Two features of an image stand in the places of token 9."""

    def __init__(self):
        super().__init__()
        self.words, self.look, self.head = nn.Embedding(10, 4), nn.Linear(6, 8), nn.Linear(4, 3)

    def forward(self, ids, images):
        features = self.look(images).reshape(-1, 4)
        mask = (ids == 9).unsqueeze(-1)
        return self.head(self.words(ids).masked_scatter(mask, features)).sum(1)


def call(rows):
    ids = torch.randint(0, 9, (rows, 5))
    ids[:, 1] = ids[:, 3] = 9
    return ids, torch.randn(rows, 6)


def test_places_and_features_of_a_row_go_together():
    model, args = Captioned(), call(4)
    found = check(model, capture(model, args), args, {})
    assert found.ok and found.rows_proved, found


def test_rows_that_share_their_features_out_otherwise_are_an_error():
    model, (ids, images) = Captioned(), call(4)
    captured = capture(model, (ids, images))
    ids[0] = 9  # three more places than the other rows have features for
    with pytest.raises(RaNNCError, match="44 places for 32 elements"):
        replay(captured, model, (ids, images), {})
