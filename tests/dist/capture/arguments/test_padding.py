"""Lengths that are rounded up to multiples, on two ranks."""

import pytest

MODEL = """
import pyrannc, torch
from torch import nn
from torch.nn import functional as F
from beside_one_process import compare

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 3)

    def forward(self, ids, labels):
        logits = self.head(torch.tanh(self.words(ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

def step(model, batch):
    loss = model(*batch)
    loss.backward()
    return dict(loss=loss)

def batches(*lengths):
    torch.manual_seed(1)
    return [(torch.randint(1, 11, (6, n)), torch.randint(3, (6, n))) for n in lengths]
"""


@pytest.mark.ranks(
    f"""
{MODEL}
model = compare(
    Tagger, batches(5, 9, 3, 12, 7, 10), step, pad={{"ids": 0, "labels": -100}}, pad_to=8
)
assert len(list(model._runs)) == 2  # of 8 and of 16
for wrong in (0, "8"):
    try:
        pyrannc.RaNNCModule(Tagger(), pad={{"ids": 0}}, pad_to=wrong)
        raise AssertionError("no error")
    except pyrannc.ConfigError as error:
        assert "pad_to" in str(error)
"""
)
def test_few_lengths_are_captured(done):
    assert "pad_to" not in done.stderr


@pytest.mark.ranks(
    f"""
{MODEL}
compare(Tagger, batches(5, 9, 3, 12, 7, 10), step)
"""
)
def test_three_captures_for_lengths_recommend_it_once(done):
    advice = [line for line in done.stderr.splitlines() if "pad_to=64" in line]
    assert len(advice) == 1 and "'ids': 0, 'labels': 0" in advice[0], done.stderr
