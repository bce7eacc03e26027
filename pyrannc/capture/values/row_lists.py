"""A tensor taken apart into a list of its rows, and the list joined again: ``torch.cat(list(x))``,
as of features of each image.

Such a list has an element for each row, and a graph at any number of rows has no such list. Where
all of it is joined in its order, that is the tensor itself in another shape.
"""

import contextlib
import operator

import torch

from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_private import FakeTensor


class RowLists:
    """Those of a trace."""

    def __init__(self):
        self._found = {}  # id of the first row -> the tensor, its version then, and its rows

    def add(self, tensor, rows):
        self._found[id(rows[0])] = tensor, tensor._version, rows

    def whole_of(self, tensors):
        """The tensor of which these are all rows, in their order."""
        if not tensors or id(tensors[0]) not in self._found:
            return None
        tensor, version, rows = self._found[id(tensors[0])]
        if len(tensors) != len(rows) or tensor._version != version:
            return None
        return tensor if all(map(operator.is_, tensors, rows)) else None


@contextlib.contextmanager
def joined(session):
    """While a model is traced, what joins all rows of a tensor takes the tensor."""
    cat, stack = torch.cat, torch.stack
    lists = session.row_lists

    def taken_apart(unbind):
        def call(*args, **kwargs):
            rows = unbind(*args, **kwargs)
            if rows and session.here():
                keep(rows, *args, **kwargs)
            return rows

        return call

    # Parameters are named as torch's; numpy's `axis` is another name of `dim` for torch.
    def keep(rows, input, dim=0, *, axis=None):
        if (dim if axis is None else axis) in (0, -input.dim()):
            lists.add(input, rows)

    def whole_of(tensors, *args, **kwargs):
        listed = isinstance(tensors, list | tuple) and along_first(*args, **kwargs)
        return lists.whole_of(tensors) if listed else None

    def along_first(dim=0, *, axis=None, **others):
        return not others and (dim if axis is None else axis) == 0

    def concatenate(*args, **kwargs):
        whole = whole_of(*args, **kwargs) if session.here() else None
        if whole is None or whole.dim() < 2:
            return cat(*args, **kwargs)
        return whole.flatten(0, 1).clone()

    def pile(*args, **kwargs):
        whole = whole_of(*args, **kwargs) if session.here() else None
        return stack(*args, **kwargs) if whole is None else whole.clone()

    with (
        replaced(FakeTensor, unbind=taken_apart(FakeTensor.unbind)),
        replaced(
            torch, cat=concatenate, concat=concatenate, stack=pile, unbind=taken_apart(torch.unbind)
        ),
    ):
        yield
