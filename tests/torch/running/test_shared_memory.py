"""Tensors of a model that look at the same numbers."""

import pickle

import pytest
import torch

from pyrannc.errors import PlanError
from pyrannc.running.shared_memory import pairs
from pyrannc.state.owners import Owners


def test_pairs_have_numbers_in_common():
    flat = torch.zeros(12)
    tensors = {
        "head": flat[:4],
        "tail": flat[4:],
        "even": flat[::2],
        "odd": flat[1::2],
        "square": flat[:4].view(2, 2).t(),
        "one": flat[4:5].expand(3),
        "none": flat[:0],
        "alone": torch.zeros(4),
    }
    found = {frozenset(pair) for pair in pairs(tensors, tensors)}
    apart = {("head", "tail"), ("even", "odd"), ("head", "one"), ("odd", "one"), ("square", "tail")}
    apart.add(("one", "square"))
    names = sorted(tensors.keys() - {"none", "alone"})
    expected = {frozenset((a, b)) for a in names for b in names if a < b}
    assert found == expected - set(map(frozenset, apart))


class Rank:
    """Of two, where the other one uses ``others``."""

    size = 2

    def __init__(self, rank, others):
        self.rank, self.others = rank, others

    def all_gather(self, content):
        other = pickle.dumps(set(self.others))
        return [content, other] if self.rank == 0 else [other, content]


def test_a_pair_on_different_ranks_is_an_error_before_anything_is_freed():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, False), torch.nn.Linear(2, 2, False))
    model[1].weight.data = model[0].weight.data
    weights = {"0.weight": model[0].weight}
    shared = pairs(weights, dict(model.named_parameters()))
    assert shared == [("0.weight", "1.weight")]
    together = {"0.weight", "1.weight"}
    Owners(Rank(0, sorted(together)), model).assign(together, shared)
    with pytest.raises(PlanError, match=r"'0\.weight' and '1\.weight' are two tensors that share"):
        Owners(Rank(0, ["1.weight"]), model).assign({"0.weight"}, shared)
    assert not model[1].weight.is_meta
