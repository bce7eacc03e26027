"""Numbers that no call changes (:mod:`pyrannc.capture.values.known_numbers`), under torch.export.

What computes a tensor is kept as the model calls it, from tensors of numbers alone on, and computed
where its number is asked for.
"""

import dataclasses
from collections.abc import Callable

import torch

from pyrannc.capture import torch_private
from pyrannc.capture.exported import rows as of_rows
from pyrannc.capture.values import known_numbers

# At which a number has to be the same.
_AT_ROWS = (3, 5)
_METHODS = frozenset((
    "__add__", "__getitem__", "__mul__", "__neg__", "__sub__", "bool", "double", "float", "int",
    "long",
))  # fmt: skip


def _short(names):
    return frozenset(name.removeprefix("aten::") for name in names)


_SET = "__setitem__"
_OF_SIZES, _WRITERS = _short(known_numbers.OF_SIZES), _short(known_numbers.WRITERS) | {_SET}
_FOLLOWED = _short(known_numbers.FACTORIES | known_numbers.FUNCTIONS) | _WRITERS | _METHODS


class _Unknown(Exception):
    """It depends on what a call gives, or nobody can tell."""


@dataclasses.dataclass(frozen=True)
class _Made:
    """A tensor that depends on nothing of a call: ``of(rows)`` computes it, None of a random number
    of [0, 1). ``version`` is that of its memory when it was made."""

    tensor: torch.Tensor
    version: int
    of: Callable | None


@dataclasses.dataclass(frozen=True)
class _Like:
    """A tensor of which sizes and dtype alone count."""

    tensor: torch.Tensor

    def of(self, rows):
        return torch.empty(_at(tuple(self.tensor.shape), rows), dtype=self.tensor.dtype)


@dataclasses.dataclass(frozen=True)
class _Operand:
    """A tensor that a call is given: ``of(rows)`` computes it."""

    of: Callable


class Known:
    """Those of one run."""

    def __init__(self):
        self._made = {}  # by the id of the tensor
        self.buffers = known_numbers.BuffersRead()
        self._own = {}  # buffers by their ids, and their versions

    def computes(self, func, name, args, kwargs):
        """What computes the result of a call that is about to be made, ``name`` being that of its
        operator; for :meth:`add`."""
        if name == "rand":
            return _Made(None, 0, None)
        if name not in _FOLLOWED:
            return None
        try:
            return _Made(None, 0, self._function(func, name, args, kwargs))
        except _Unknown:
            return None

    def add(self, result, name, args, computes) -> None:
        """The call has returned ``result``."""
        result = args[0] if name == _SET else result
        if not isinstance(result, torch.Tensor):
            return
        if computes is None or (computes.of is None and result.dim() > 0):
            self._made.pop(id(result), None)
        else:
            made = dataclasses.replace(computes, tensor=result, version=result._version)
            self._made[id(result)] = made

    def add_buffer(self, fake, name, tensor) -> None:
        """``fake`` stands for the model's buffer ``tensor``."""
        self._own[id(fake)] = fake, fake._version
        self.buffers.add(id(fake), name, tensor)

    def number(self, tensor):
        """The only element of ``tensor``; None where it is not known."""
        try:
            of = self._of(tensor)
        except _Unknown:
            return None
        before = self.buffers.numbers.copy()
        try:
            with torch_private.disable_current_modes():
                found = [of(rows).item() for rows in _AT_ROWS]
            if found[0] == found[1]:
                return found[0]
        except _Unknown:
            pass
        self.buffers.numbers = before
        return None

    def _read(self, buffer):
        values = self.buffers.read(buffer)
        if values is None:
            raise _Unknown
        return values

    def _of(self, tensor):
        made = self._made.get(id(tensor))
        if made is not None and made.tensor is tensor and made.version == tensor._version:
            if made.of is None:
                raise _Unknown
            return made.of
        own, version = self._own.get(id(tensor), (None, None))
        if own is tensor and version == tensor._version:
            return lambda rows: self._read(id(own))
        constant = getattr(tensor, "constant", None)
        if constant is None or constant.dim() > 0:
            raise _Unknown
        return lambda rows: constant.clone()

    def _function(self, func, name, args, kwargs):
        kind = f"aten::{name}"
        if kind in known_numbers.COMPARISONS and len(args) == 2 and self._is_random(args[0]):
            answer = known_numbers.compared_random(kind, args[1])
            if answer is None:
                raise _Unknown
            return lambda rows: torch.tensor(answer)
        if name in _OF_SIZES:
            args = (_Like(args[0]), *args[1:])
        given, named = self._operands(args), self._operands(kwargs)

        def of(rows):
            operands, others = _at(given, rows), _at(named, rows)
            if "device" in others:
                others["device"] = "cpu"
            if name in _WRITERS:  # what others read of that memory is not known any more
                operands = (operands[0].clone(), *operands[1:])
            result = func(*operands, **others)
            return operands[0] if name == _SET else result

        return of

    def _is_random(self, tensor):
        made = self._made.get(id(tensor))
        return made is not None and made.tensor is tensor and made.of is None

    def _operands(self, value):
        """With what computes them in place of tensors."""
        if isinstance(value, torch.Tensor):
            return _Operand(self._of(value))
        if type(value) is dict:
            return {key: self._operands(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._operands, value))
        return value


def _at(value, rows):
    """With tensors and numbers in place of what computes them and of sizes."""
    if isinstance(value, _Operand | _Like):
        return value.of(rows)
    if isinstance(value, torch.SymInt | torch.SymFloat):
        number = of_rows.at(value.node.expr, rows)
        return int(number) if isinstance(value, torch.SymInt) else float(number)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, dict):
        return {key: _at(each, rows) for key, each in value.items()}
    if isinstance(value, list | tuple):  # sizes are tuples
        found = [_at(each, rows) for each in value]
        return found if isinstance(value, list) else tuple(found)
    return value
