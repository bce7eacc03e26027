"""A wrapped model that has items has them, too; others have none."""

import copy
import pickle
from collections.abc import Iterable, Sized

import pytest
import torch
from torch import nn

from pyrannc import RaNNCModule


def test_items_of_a_sequence_are_the_models():
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    wrapped = RaNNCModule(plain)
    assert wrapped[0] is plain[0] and wrapped[-1] is plain[2] and len(wrapped) == 3
    assert [*wrapped] == [*plain] and [*wrapped[1:]] == [*plain][1:] and wrapped
    wrapped[1] = nn.Tanh()
    assert isinstance(plain[1], nn.Tanh)
    wrapped(torch.ones(4, 4)).sum().backward()
    assert plain[0].weight.grad is not None and "plan" in dir(wrapped.rannc)
    assert repr(wrapped).startswith("RaNNCModule(") and type(wrapped[0]) is nn.Linear


def test_keys_of_a_dict_are_the_models():
    class Heads(nn.ModuleDict):
        def forward(self, x):
            return self["a"](x)

    plain = Heads({"a": nn.Linear(4, 2), "b": nn.ReLU()})
    wrapped = RaNNCModule(plain)
    del wrapped["b"]
    assert "a" in wrapped and "b" not in wrapped and [*wrapped] == ["a"]


def test_copies_and_files_keep_the_items():
    wrapped = RaNNCModule(nn.Sequential(nn.Linear(4, 2)))
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert isinstance(other, RaNNCModule) and other[0].in_features == 4


def test_what_the_compiler_has_made_of_a_sequence_has_items():
    pytest.importorskip("torch._dynamo")
    assert len(RaNNCModule(torch.compile(nn.Sequential(nn.Linear(4, 2))))) == 1


def test_another_model_has_none():
    wrapped = RaNNCModule(nn.Linear(4, 2))
    assert not isinstance(wrapped, Iterable | Sized) and wrapped
    with pytest.raises(TypeError, match="not subscriptable"):
        _ = wrapped[0]
