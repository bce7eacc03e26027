"""What can be compared before each call: numbers, also numpy's, flags, strings, functions, modules
and tensors, and what holds a few of them."""

import argparse
import array
import collections
import contextvars
import dataclasses
import enum
import functools
import types
import weakref
from collections.abc import Mapping

import numpy as np
import torch

from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes.around import DEEPEST
from pyrannc.capture.attributes.user_code import (
    LIBRARIES,
    has_attributes,
    is_class_of_user,
    is_of_user,
)

#: Elements of a list, a set or an array that is compared. Of plain numbers and strings, which C
#: compares, there may be more.
#: tuned by: a call's time: 64 tensors take 10 us, 4096 numbers 60 us, 256 KiB of an array 30 us.
#: without it: a list with an entry for each token would be gone through in every call.
_MOST_ELEMENTS = 1024
_MOST_PLAIN = 4096
_MOST_BYTES = 64 * _MOST_PLAIN
PLAIN_TYPES = {bool, int, float, complex, str, bytes, type(None)}
_PLAIN = (
    bool | int | float | complex | str | bytes | None | enum.Enum | np.generic | torch.dtype
    | torch.device
)  # fmt: skip
_FUNCTION = (
    types.FunctionType | types.BuiltinFunctionType | types.MethodType | functools.partial
)  # fmt: skip
_BYTES = bytearray | memoryview | array.array
_WITH_MORE = functools.partial | list | tuple | set | collections.deque  # than what is compared
_OF_CLASS = property | staticmethod | classmethod | functools.cached_property
NOTHING = object()


class _Same:
    """Is equal where the same tensor, module or function stands: what is written into a tensor is
    seen by the graphs that compute with it."""

    def __init__(self, value):
        self._value = value

    def __eq__(self, other):
        if not isinstance(other, _Same):
            return False
        one, another = self._value, other._value
        both_methods = isinstance(one, types.MethodType) and isinstance(another, types.MethodType)
        return one is another or (both_methods and one == another)

    __hash__ = None

    def __repr__(self):
        if isinstance(self._value, torch.Tensor):
            return f"a tensor of shape {list(self._value.shape)}"
        if isinstance(self._value, torch.nn.Module):
            return f"a {type(self._value).__name__}"
        return getattr(self._value, "__name__", repr(self._value))


class _Array:
    """Is equal where an array of the same numbers stands."""

    def __init__(self, array):
        self._array = array

    def __eq__(self, other):
        return isinstance(other, _Array) and pytree.equal(self._array, other._array)

    __hash__ = None

    def __repr__(self):
        return repr(self._array)


def comparable(value):
    """``value`` as it is compared, or ``NOTHING``."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor | torch.nn.Module | _OF_CLASS):
        return _Same(value)
    if isinstance(value, _FUNCTION):
        return NOTHING if _is_put_there(value) else _Same(value)
    if isinstance(value, np.ndarray):
        few = value.nbytes <= _MOST_BYTES and not value.dtype.hasobject
        return _Array(value.copy()) if few else NOTHING
    if isinstance(value, _BYTES):
        return bytes(value) if len(value) <= _MOST_BYTES else NOTHING
    if not isinstance(value, list | tuple | set | frozenset | collections.deque):
        return NOTHING
    is_set = isinstance(value, set | frozenset)
    if len(value) <= _MOST_PLAIN and PLAIN_TYPES.issuperset(map(type, value)):
        return frozenset(value) if is_set else tuple(value)
    if len(value) > _MOST_ELEMENTS:
        return NOTHING
    if is_set:
        return frozenset(value) if all(isinstance(each, _PLAIN) for each in value) else NOTHING
    found = tuple(map(comparable, value))
    return NOTHING if any(each is NOTHING for each in found) else found


def _is_put_there(function) -> bool:
    """Whether a library has put it where it stands, as Lightning puts another ``forward`` there for
    each step. What torch has may be a user's choice, such as ``torch.relu``."""
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    return package in LIBRARIES and package not in ("torch", "builtins")


def comparables(path, value, wanted, seen, depth=DEEPEST):
    """Pairs of path and what is compared: of a value, of what a dict, a short list or settings
    hold, or of those attributes of an object, which may count steps, too, or a class of the user's
    that are ``wanted``; and of what these hold.

    ``seen``: ids of what holds something; it is looked at once."""
    if (found := comparable(value)) is not NOTHING:
        yield path, found
        if isinstance(value, types.MethodType):
            value = value.__self__  # with which it computes
        elif not (isinstance(value, _WITH_MORE) and hasattr(value, "__dict__")):
            return
    if id(value) in seen:
        return
    seen.add(id(value))
    for name, each in _held(value, wanted):
        if depth:
            yield from comparables(f"{path}.{name}", each, wanted, seen, depth - 1)
        elif (found := comparable(each)) is not NOTHING:
            yield f"{path}.{name}", found


def _held(value, wanted):
    """Pairs of name and value of what a value holds."""
    if _is_settings(value):
        yield from ((name, getattr(value, name, None)) for name in _settings_of(value))
        return
    if isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, weakref.ref):
        yield "()", value()
    elif isinstance(value, contextvars.ContextVar):
        yield "get()", value.get(None)
    elif has_attributes(value) or is_class_of_user(value):
        yield from ((name, each) for name, each in vars(value).items() if name in wanted)
        for kind in filter(is_of_user, type(value).__mro__):
            yield from ((name, each) for name, each in vars(kind).items() if name in wanted)
    for name in sorted(_slots_of(type(value)) & wanted):
        yield name, getattr(value, name, None)
    if isinstance(value, Mapping):
        if all(comparable(key) is not NOTHING for key in value):
            yield from value.items()
    elif isinstance(value, np.ndarray):
        yield from enumerate(value.flat if value.size <= _MOST_ELEMENTS else ())
    elif isinstance(value, list | tuple | collections.deque) and len(value) <= _MOST_ELEMENTS:
        yield from enumerate(value)


def _is_settings(value) -> bool:
    of_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return of_dataclass or isinstance(value, argparse.Namespace | types.SimpleNamespace)


def _settings_of(value) -> list[str]:
    """Their names; a dataclass may have slots, and more than its fields."""
    fields = (
        [each.name for each in dataclasses.fields(value)]
        if hasattr(value, "__dataclass_fields__")
        else []
    )
    return [*dict.fromkeys([*fields, *getattr(value, "__dict__", ())])]


@functools.cache
def _slots_of(kind) -> frozenset:
    """Names of attributes that objects of a class have in slots."""
    found = [vars(each).get("__slots__", ()) for each in kind.__mro__]
    return frozenset(
        name for slots in found for name in ((slots,) if isinstance(slots, str) else slots)
    )
