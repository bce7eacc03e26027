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
    unbind, cat, stack = FakeTensor.unbind, torch.cat, torch.stack
    lists = session.row_lists

    # numpy's `axis` is another name of `dim` for torch.
    def taken_apart(tensor, dim=0, *, axis=None):
        dim = dim if axis is None else axis
        rows = unbind(tensor, dim)
        if session.here() and dim in (0, -tensor.dim()) and rows:
            lists.add(tensor, rows)
        return rows

    def whole_of(tensors):
        listed = session.here() and isinstance(tensors, list | tuple)
        return lists.whole_of(tensors) if listed else None

    def along_first(dim=0, *, axis=None, **others):
        return not others and (dim if axis is None else axis) == 0

    def concatenate(tensors, *args, **kwargs):
        whole = whole_of(tensors) if along_first(*args, **kwargs) else None
        if whole is None or whole.dim() < 2:
            return cat(tensors, *args, **kwargs)
        return whole.flatten(0, 1).clone()

    def pile(tensors, *args, **kwargs):
        whole = whole_of(tensors) if along_first(*args, **kwargs) else None
        return stack(tensors, *args, **kwargs) if whole is None else whole.clone()

    with (
        replaced(FakeTensor, unbind=taken_apart),
        replaced(torch, cat=concatenate, concat=concatenate, stack=pile, unbind=taken_apart),
    ):
        yield
