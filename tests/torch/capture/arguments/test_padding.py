"""Arguments padded to the sizes of other ranks."""

import pytest
import torch
from torch import nn

from pyrannc import ConfigError
from pyrannc.capture.arguments.call import Call
from pyrannc.capture.arguments.padding import Padding


class Model(nn.Module):
    def forward(self, ids, batch=None, labels=None):
        return ids


def call_of(*args, **kwargs):
    return Call(args, kwargs)


def padded(pad, call, others, side="right"):
    """``others``: sizes on another rank."""
    padding = Padding(pad, side)
    mine = padding.sizes(call, [0] * len(call.tensors))
    args, kwargs = padding.apply(Model(), call, [mine, mine | others]).arguments()
    return [*args, *kwargs.values()]


def test_each_dimension_but_the_rows_is_padded():
    ids = torch.tensor([[1, 2]])
    others = {"args[0]": [None, 4]}
    (found,) = padded({"ids": 7}, call_of(ids), others)
    assert found.tolist() == [[1, 2, 7, 7]]
    (found,) = padded({0: 7}, call_of(ids), others, "left")
    assert found.tolist() == [[7, 7, 1, 2]]
    mask = torch.ones(1, 1, 2, 1, dtype=torch.bool)
    (found,) = padded({"ids": False}, call_of(mask), {"args[0]": [None, 1, 3, 2]}, "left")
    assert found.dtype == torch.bool
    assert found.tolist() == [[[[False, False], [False, True], [False, True]]]]


@pytest.mark.parametrize("key", ["batch['mask'][0]", "batch.mask.0", "kwargs['batch']['mask'][0]"])
def test_a_nested_argument_has_a_path_and_the_longest_key_counts(key):
    call = call_of(torch.ones(1), batch={"mask": [torch.ones(1, 1)], "other": torch.ones(1, 1)})
    others = {path: [None, 2] for path in call.paths[1:]}
    _, batch = padded({"batch": 3, key: 5}, call, others)
    assert batch["mask"][0].tolist() == [[1, 5]] and batch["other"].tolist() == [[1, 3]]


def test_a_padded_argument_has_its_gradient():
    x = torch.ones(1, 2, requires_grad=True)
    with torch.no_grad():
        (found,) = padded({"ids": 0.5}, call_of(x), {"args[0]": [None, 3]})
    (found * 2).sum().backward()
    assert x.grad.tolist() == [[2, 2]]


def test_what_fits_already_is_the_same_object():
    call = call_of(torch.ones(1, 4))
    padding = Padding({"ids": 0}, "right")
    assert padding.apply(Model(), call, [{"args[0]": [None, n]} for n in (4, 3)]) is call


def test_bad_input_is_named():
    call = call_of(torch.tensor([[1, 2]]))
    with pytest.raises(ConfigError, match=r"pad says 0.5 for args\[0\], whose dtype"):
        padded({"ids": 0.5}, call, {"args[0]": [None, 3]})
    with pytest.raises(ConfigError, match=r"\[rows, 2\] on rank 0, but \[rows, 3\] on rank 1"):
        padded({"labels": 0}, call, {"args[0]": [None, 3]})
    with pytest.raises(ConfigError, match=r"\[rows, 3, 1\] on rank 1, and pad .* cannot mend that"):
        padded({"ids": 0}, call, {"args[0]": [None, 3, 1]})
    assert "did you mean 'labels'" in Padding({"label": 0}, "right").unknown(Model(), call)
    assert Padding({"labels": 0}, "left").unknown(Model(), call) == ""  # of a later call


def test_lengths_go_up_to_powers_of_two():
    for length, wanted in (1, 1), (2, 2), (5, 8), (8, 8), (9, 16):
        call = call_of(torch.ones(2, length))
        padding = Padding({"ids": 0}, "right", "powers of two")
        sizes = padding.sizes(call, [0])
        (found,), _ = padding.apply(Model(), call, [sizes]).arguments()
        assert found.shape == (2, wanted)
    with pytest.raises(ConfigError, match="powers of two"):
        Padding({"ids": 0}, "right", "powers of three")


def test_targets_that_begin_like_a_padded_argument_are_as_long():
    call = call_of(torch.ones(2, 5), labels=torch.ones(2, 3))
    padding = Padding({"ids": 0, "labels": 0}, "left")
    mine = padding.sizes(call, [0, 0])
    padding.apply(Model(), call, [mine, {path: [None, 6] for path in mine}])
    assert padding.widths_like((2, 5)) == {(1, 0, 0, 0)}
    assert padding.widths_like((2, 3, 7)) == {(0, 0, 3, 0, 0, 0)}
    assert padding.widths_like((2, 4)) == padding.widths_like((2,)) == set()
