"""Arguments without rows are told apart by their values, on the host and on an accelerator."""

import types

import pytest
import torch

from pyrannc import RaNNCError
from pyrannc.running.alike.whole_arguments import WholeArguments, refuse_different


def told(*tensors, dims=None):
    call = types.SimpleNamespace(paths=[f"a{i}" for i in range(len(tensors))], tensors=tensors)
    return WholeArguments().told(call, dims or [None] * len(tensors))


def test_a_number_is_itself_and_others_have_a_hash():
    assert told(torch.tensor(1.5), torch.tensor([7]), torch.ones(3, 0)) == {"a0": "1.5", "a1": "7"}
    (text,) = told(torch.arange(6).reshape(2, 3)).values()
    assert text.startswith("other values of shape [2, 3]")


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int16, torch.complex64])
def test_one_other_element_makes_another_text(dtype):
    tensor = torch.zeros(4, 3, dtype=dtype).t()
    other = tensor.clone()
    other[1, 2] = 1
    assert told(tensor) == told(tensor.clone()) != told(other)


def test_a_conjugate_view_is_what_it_stands_for():
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    assert told(tensor.conj()) == told(tensor.conj().resolve_conj()) != told(tensor)


def test_rows_are_not_told():
    assert told(torch.ones(4, 2), torch.ones(2), dims=[0, None]).keys() == {"a1"}


def test_different_ones_are_an_error_that_names_the_argument_and_the_ranks():
    refuse_different([{"s": "1.0"}, {"s": "1.0"}])
    with pytest.raises(RaNNCError, match=r"(?s)'s' has no rows.*1\.0.*2\.0.*tokens"):
        refuse_different([{"s": "1.0"}, {"s": "2.0"}])
    with pytest.raises(RaNNCError, match="'s' has no rows"):
        refuse_different([{"s": "1.0"}, {}])
