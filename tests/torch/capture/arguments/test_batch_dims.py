"""Lists with a tensor for each example have no dimension of rows, and whoever hands one is told."""

import logging

import pytest
import torch

from pyrannc import ConfigError, TraceError
from pyrannc.capture.arguments.batch_dims import find_batch_dims
from pyrannc.capture.arguments.call import Call
from pyrannc.capture.model import capture


def dims_of(*args, **kwargs):
    call = Call(args, kwargs)
    return find_batch_dims(call, call.paths, None)


def test_a_list_of_examples_alone_is_a_warning(caplog):
    caplog.set_level(logging.WARNING, "rannc")
    assert dims_of([torch.ones(3, 6, 6)] * 4) == [0] * 4
    assert "args[0] is a list, and dimension 0 of each tensor" in caplog.text
    assert "torch.stack" in caplog.text


def test_an_error_about_rows_says_what_to_do_with_lists():
    targets = [{"labels": torch.tensor(1), "boxes": torch.ones(4)} for _ in range(4)]
    with pytest.raises(TraceError, match=r"(?s)which inputs hold the rows.*torch\.stack"):
        dims_of([torch.ones(3, 6, 6)] * 4, targets)


def test_an_error_about_rows_names_what_may_have_as_many_entries_by_chance():
    class Weighted(torch.nn.Linear):
        def forward(self, x, weight):
            return super().forward(x) * weight

    with pytest.raises(TraceError, match=r"batch_dims=\{'weight': None\}"):
        capture(Weighted(6, 4), (torch.ones(4, 6), torch.ones(4)))


def test_lists_beside_a_tensor_with_rows_are_none_of_examples(caplog):
    caplog.set_level(logging.WARNING, "rannc")
    assert dims_of(torch.ones(8, 4), [torch.ones(8, 2), torch.ones(8, 3)]) == [0, 0, 0]
    assert dims_of((torch.ones(8, 2), torch.ones(8, 3))) == [0, 0] and not caplog.text


@pytest.mark.parametrize("dim", [2, -3, "a", 1.0, True])
def test_what_is_no_dimension_of_the_tensor_is_named(dim):
    call = Call((torch.ones(8, 4),), {})
    with pytest.raises(ConfigError, match=f"batch_dims says dimension {dim!r} for args"):
        find_batch_dims(call, call.paths, {0: dim})
