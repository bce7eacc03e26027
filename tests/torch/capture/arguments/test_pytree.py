"""Arguments and results: what is flattened comes back as the same types."""

import argparse
import collections
import dataclasses
import enum
import types

import numpy as np
import pytest
import torch

from pyrannc.capture.arguments import pytree

A, B = torch.ones(2), torch.zeros(3)
Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str = "n"


class Holder:
    """Any object that keeps tensors in its attributes, as caches do."""

    def __init__(self, *layers):
        self.layers = list(layers)
        self.limit = 3


class Phase(enum.Enum):
    WARM_UP, MAIN = 1, 2


class Settings:
    """An object without tensors, which a loop may write to."""

    def __init__(self):
        self.rate, self.phase, self.tags = 1.0, Phase.WARM_UP, ["a"]
        self.table, self.act = np.zeros(2), torch.tanh


TREES = {
    "a tensor": A,
    "a tuple": (A, B),
    "a list": [A, [B], "text"],
    "a dict": {"a": A, "n": None, "b": {"c": B}},
    "an ordered dict": collections.OrderedDict(b=A, a=B),
    "a default dict": collections.defaultdict(list, a=[A]),
    "a named tuple": Point(A, 2),
    "a result of an operator": torch.max(torch.ones(2, 2), 1),
    "a dataclass": Frozen(A),
    "an object": Holder(A, B),
    "a namespace": argparse.Namespace(x=A, rate=0.5),
    "a simple namespace": types.SimpleNamespace(rate=0.5),
    "a size": torch.Size([2, 3]),
    "a distribution": torch.distributions.Normal(A, 1.0),
    "no tensor at all": (1, "a", None, 2.5),
}


@pytest.mark.parametrize("what", TREES)
def test_unflatten_is_the_inverse_of_flatten(what):
    tree = TREES[what]
    tensors, shape = pytree.flatten(tree)
    rebuilt = pytree.unflatten(shape, tensors)
    assert type(rebuilt) is type(tree)
    again, shape_again = pytree.flatten(rebuilt)
    assert all(a is b for a, b in zip(again, tensors, strict=True))
    assert shape_again == shape


def test_model_outputs_of_transformers_keep_their_class():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    output = outputs.CausalLMOutput(loss=A, logits=B)
    tensors, shape = pytree.flatten(output)
    rebuilt = pytree.unflatten(shape, tensors)
    assert type(rebuilt) is outputs.CausalLMOutput
    assert rebuilt.loss is A and rebuilt["logits"] is B and rebuilt.hidden_states is None


def test_paths_are_written_as_in_python():
    tree = {"args": ([A],), "x": Frozen(B)}
    assert pytree.paths(pytree.flatten(tree)[1], "call") == ["call['args'][0][0]", "call['x'].x"]


def test_objects_without_tensors_are_constants_compared_by_equality():
    marker = object()
    assert pytree.flatten((marker, A))[1] == pytree.flatten((marker, B))[1]
    assert pytree.flatten((object(), A))[1] != pytree.flatten((object(), A))[1]


#: How a loop writes to an argument, and what a later call then says of it.
WRITES = {
    "a namespace": (
        argparse.Namespace(rate=1.0),
        lambda value: setattr(value, "rate", 5.0),
        "t.rate is 5.0, but was 1.0",
    ),
    "an array": (
        np.ones(2),
        lambda value: value.fill(5),
        "t is array([5., 5.]), but was array([1., 1.])",
    ),
    "a set": ({"a"}, lambda value: value.add(1), None),
    "bytes": (bytearray(b"a"), lambda value: value.extend(b"b"), None),
    "a number of an object": (
        Settings(),
        lambda value: setattr(value, "rate", 5.0),
        "t.rate is 5.0, but was 1.0",
    ),
    "an enumerator of an object": (
        Settings(),
        lambda value: setattr(value, "phase", Phase.MAIN),
        "t.phase is <Phase.MAIN: 2>, but was <Phase.WARM_UP: 1>",
    ),
    "a list of an object": (
        Settings(),
        lambda value: value.tags.append("b"),
        "t.tags is ['a', 'b'], but was ['a']",
    ),
    "an array of an object": (Settings(), lambda value: value.table.fill(1), None),
    "another attribute of an object": (
        Settings(),
        lambda value: setattr(value, "more", 1),
        "t.more is 1, but was not there",
    ),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_is_kept_differs_from_the_same_object_written_to_since(what):
    value, write, words = WRITES[what]
    kept = pytree.kept(pytree.flatten(value)[1])
    assert pytree.difference(kept, pytree.flatten(value)[1], "t") is None
    write(value)
    found = pytree.difference(kept, pytree.flatten(value)[1], "t")
    assert found == words if words else found


def test_arrays_of_equal_numbers_are_equal_also_where_some_are_none():
    numbers = np.array([1.0, np.nan])
    kept = pytree.kept(pytree.flatten(numbers)[1])
    numbers += 0
    for other, same in (
        (numbers, True), (numbers.copy(), True), (np.array([1.0, 2.0]), False),
        (numbers.astype(np.float32), False), (numbers[:1], False),
    ):  # fmt: skip
        assert (pytree.difference(kept, pytree.flatten(other)[1], "t") is None) == same


def test_what_an_object_is_made_of_beside_plain_attributes_is_nobodys_business():
    settings = Settings()
    kept = pytree.kept(pytree.flatten(settings)[1])
    settings.act, settings.cache = torch.relu, [object()]
    assert pytree.difference(kept, pytree.flatten(settings)[1], "t") is None


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        ({"a": A}, {"a": A, "b": 1}, "t has a new 'b'"),
        ({"a": A, "b": 1}, {"a": A}, "t has no 'b'"),
        ([A], (A,), "t is a tuple, but was a list"),
        ([1], [2], "t[0] is 2, but was 1"),
        ([1], [True], "t[0] is True, but was 1"),
        ([None], [A], "t[0] is a tensor, but was None"),
    ],
)
def test_differences_name_their_place(expected, got, words):
    shapes = [pytree.flatten(tree)[1] for tree in (expected, got)]
    assert pytree.difference(*shapes, "t") == words


def test_not_a_number_equals_itself():
    assert pytree.equal(float("nan"), float("nan"))


def test_what_is_set_later_in_an_output_of_transformers_stays_last():
    """As vision towers give their pooled output, beside hidden states."""
    outputs = pytest.importorskip("transformers.modeling_outputs")
    made = outputs.BaseModelOutputWithPooling(last_hidden_state=A, hidden_states=(A, B))
    made.pooler_output = B
    tensors, shape = pytree.flatten(made)
    again = pytree.unflatten(shape, tensors)
    assert list(again) == list(made) == ["last_hidden_state", "hidden_states", "pooler_output"]
