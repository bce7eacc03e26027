"""What can be compared before each call: numbers, also numpy's, flags, strings, functions and
tensors, and what holds a few of them."""

import argparse
import dataclasses
import enum
import functools
import types
from collections.abc import Mapping

import numpy as np
import torch

from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes.around import DEEPEST
from pyrannc.capture.attributes.user_code import LIBRARIES, is_class_of_user, is_object

#: Elements of a list, a set or an array that is compared.
#: tuned by: a safety margin: lists of settings have a few elements.
#: without it: a list with an entry for each class or token would be gone through in every call.
_MOST_ELEMENTS = 16
_PLAIN = (
    bool | int | float | complex | str | bytes | None | enum.Enum | np.generic | torch.dtype
    | torch.device
)  # fmt: skip
_FUNCTION = (
    types.FunctionType | types.BuiltinFunctionType | types.MethodType | functools.partial
)  # fmt: skip
NOTHING = object()


class _Same:
    """Is equal where the same tensor or function stands: what is written into a tensor is seen by
    the graphs that compute with it."""

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
    if isinstance(value, torch.Tensor):
        return _Same(value)
    if isinstance(value, _FUNCTION):
        return NOTHING if _is_put_there(value) else _Same(value)
    if isinstance(value, np.ndarray):
        few = value.size <= _MOST_ELEMENTS and not value.dtype.hasobject
        return _Array(value.copy()) if few else NOTHING
    if not isinstance(value, list | tuple | set | frozenset) or len(value) > _MOST_ELEMENTS:
        return NOTHING
    if isinstance(value, set | frozenset):
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
    hold, or of those attributes of an object or class of the user's, which may count steps, too,
    that are ``wanted``; and of what these hold.

    ``seen``: ids of what holds something; it is looked at once."""
    if (found := comparable(value)) is not NOTHING:
        yield path, found
        if not isinstance(value, types.MethodType):
            return
        value = value.__self__  # with which it computes
    if id(value) in seen:
        return
    seen.add(id(value))
    if _is_settings(value):
        held = [(name, getattr(value, name, None)) for name in _settings_of(value)]
    elif is_object(value) or is_class_of_user(value):
        held = [(name, each) for name, each in vars(value).items() if name in wanted]
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        held = value.items()
    elif isinstance(value, list | tuple) and len(value) <= _MOST_ELEMENTS:
        held = enumerate(value)
    else:
        return
    for name, each in held:
        if depth:
            yield from comparables(f"{path}.{name}", each, wanted, seen, depth - 1)
        elif (found := comparable(each)) is not NOTHING:
            yield f"{path}.{name}", found


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
