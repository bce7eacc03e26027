"""What in a call comes of its arguments, of parameters or of random numbers.

Such a tensor has other values in the next call; a mask that is made of sizes alone has not.
"""

import dataclasses

import torch

from pyrannc import operators
from pyrannc.capture.attributes.user_code import is_object
from pyrannc.capture.torch_private import TorchDispatchMode
from pyrannc.operators import Trait

# Of the first operand of these, only sizes and dtype count.
_OF_SIZES = operators.in_graphs(operators.of(Trait.like))


@dataclasses.dataclass
class _Operator:
    what: tuple  # with what it was given
    reads: set  # keys of storages
    makes: set
    writes: bool


class OfOneCall(TorchDispatchMode):
    """Follows the operators of a call that runs inside.

    Args:
        given: Arguments of the call, and parameters.
        buffers: Of the model; they count from when they are written.
    """

    def __init__(self, given, buffers):
        super().__init__()
        self._operators = []
        self._buffers = _storages(buffers)
        self._storages = _storages(given)  # kept, so that no other one gets their key

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        written = _storages(_written(func, args, kwargs))
        read = _storages([args[1:] if func._schema.name in _OF_SIZES else args, kwargs])
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random or not read.keys().isdisjoint(self._storages):
            made = _storages(outputs) | written
            self._storages |= made
            if written or read.keys().isdisjoint(made):  # no view
                what = func, _described([args, kwargs])
                each = _Operator(what, set(read), set(made), writes=bool(written))
                self._operators.append(each)
        self._storages |= {key: each for key, each in written.items() if key in self._buffers}
        return outputs

    def holds(self, value) -> bool:
        """Whether the values of a tensor, or of one in a container or object, are of this call."""
        return not _storages([value]).keys().isdisjoint(self._storages)

    def leading_to(self, results) -> list:
        """The operators that computed ``results`` with what is of this call, or wrote it, and what
        each was given."""
        used, found = set(_storages(results)), []
        for each in reversed(self._operators):
            if each.writes or not used.isdisjoint(each.makes):
                used |= each.reads
                found.append(each.what)
        return found


def _written(func, args, kwargs):
    return [
        args[index] if index < len(args) else kwargs.get(argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _storages(values) -> dict:
    found = [each for each in _flat(values) if each.layout == torch.strided]
    return {each.untyped_storage()._cdata: each.untyped_storage() for each in found}


def _flat(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _flat(each)
    elif is_object(value):
        yield from _flat(vars(value))


def _described(value):
    if isinstance(value, torch.Tensor):
        strides = value.layout == torch.strided and (value.stride(), value.storage_offset())
        return tuple(value.shape), value.dtype, strides
    if isinstance(value, dict):
        return {key: _described(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(each) for each in value]
    return value
