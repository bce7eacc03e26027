"""Nested data as JSON and tensors."""

import collections
import json
import math

import pytest
import torch

from pyrannc.checkpoint import nested
from pyrannc.errors import RaNNCError


def test_what_is_encoded_comes_back_with_its_types():
    given = {
        "numbers": [1, 2.5, True, None, -3],
        "tuple": (0.9, (1, "a")),
        3: {"text": "ü", "$": 1},
        "milestones": collections.Counter([3, 7, 7]),
        "tensors": [torch.arange(3), {"scalar": torch.tensor(2.0)}],
        "infinite": float("inf"),
    }
    tensors = {}
    text = json.dumps(nested.encode(given, "extra", tensors))
    assert sorted(tensors) == sorted(nested.tensor_paths(json.loads(text)))
    found = nested.decode(json.loads(text), tensors)
    assert torch.equal(found["tensors"][0], torch.arange(3))
    assert found["tensors"][1]["scalar"] == 2
    for key in ("numbers", "tuple", 3, "milestones", "infinite"):
        assert found[key] == given[key] and type(found[key]) is type(given[key]), key
    assert math.isnan(nested.decode(nested.encode(float("nan"), "x", {}), {}))


@pytest.mark.parametrize(
    "given",
    [
        {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}},
        {1: torch.ones(2), "1": torch.zeros(2)},
    ],
    ids=["dots", "numbers"],
)
def test_tensors_whose_paths_would_be_equal_stay_apart(given):
    """The later one was in both places."""
    tensors = {}
    found = nested.decode(json.loads(json.dumps(nested.encode(given, "extra", tensors))), tensors)
    assert len(tensors) == 2
    assert repr(found) == repr(given)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {2}]}, "'extra.a.1' is a builtins.set"),
        ({"f": lambda: 0}, "'extra.f' is a builtins.function"),
        ({"d": torch.float32}, "'extra.d' is a torch.dtype"),
        ({object: 1}, "'extra' is a builtins.type"),
    ],
)
def test_what_is_no_data_is_named(value, path):
    with pytest.raises(RaNNCError, match="and a checkpoint holds") as error:
        nested.encode(value, "extra", {})
    assert path in str(error.value)
