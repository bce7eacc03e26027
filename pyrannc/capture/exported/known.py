"""Numbers that no call changes (:mod:`pyrannc.capture.values.known_numbers`), under torch.export.

What computes a tensor is kept as the model calls it, from tensors of numbers alone on, and computed
where its number is asked for.
"""

import dataclasses
import operator
from collections.abc import Callable

import sympy
import torch

from pyrannc.capture import torch_private
from pyrannc.capture.values import known_numbers

# At which a number has to be the same.
_AT_ROWS = (3, 5)
_METHODS = frozenset((
    "__add__", "__getitem__", "__mul__", "__neg__", "__sub__", "bool", "double", "float", "int",
    "long",
))  # fmt: skip
_COMPARISONS = {"ge": operator.ge, "lt": operator.lt}


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


class Known:
    """Those of one run."""

    def __init__(self):
        self._made = {}  # by the id of the tensor

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

    def number(self, tensor):
        """The only element of ``tensor``; None where it is not known."""
        try:
            of = self._of(tensor)
        except _Unknown:
            return None
        with torch_private.disable_current_modes():
            found = [of(rows).item() for rows in _AT_ROWS]
        return found[0] if found[0] == found[1] else None

    def _of(self, tensor):
        made = self._made.get(id(tensor))
        if made is not None and made.tensor is tensor and made.version == tensor._version:
            if made.of is None:
                raise _Unknown
            return made.of
        constant = getattr(tensor, "constant", None)
        if constant is None or constant.dim() > 0:
            raise _Unknown
        return lambda rows: constant.clone()

    def _function(self, func, name, args, kwargs):
        if name in _COMPARISONS and len(args) == 2 and self._is_random(args[0]):
            answer = _compared_random(name, args[1])
            return lambda rows: torch.tensor(answer)
        if name in _OF_SIZES:
            args = (_Like(args[0]).of, *args[1:])
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
        """With functions of the rows in place of tensors."""
        if isinstance(value, torch.Tensor):
            return self._of(value)
        if type(value) is dict:
            return {key: self._operands(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._operands, value))
        return value


def _compared_random(name, bound):
    if not isinstance(bound, int | float) or not (bound <= 0 or bound >= 1):
        raise _Unknown
    return (bound >= 1) == (name == "lt")


def _at(value, rows):
    """With tensors and numbers in place of functions of the rows and sizes."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        expression = value.node.expr
        number = expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.Integer(rows)))
        return int(number) if isinstance(value, torch.SymInt) else float(number)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, dict):
        return {key: _at(each, rows) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (
            [_at(each, rows) for each in value]
            if type(value) is list
            else tuple(_at(each, rows) for each in value)
        )
    return value(rows) if type(value) in _FUNCTIONS else value


_FUNCTIONS = (type(_at), type(_Like(None).of))
