"""Nested arguments and results: their tensors as a flat list, and everything else as a shape.

Containers are tuples (named ones too), lists, dicts and their subclasses (a Hugging Face
``ModelOutput`` comes back as that class), dataclasses, namespaces, and any object that keeps
tensors in its attributes. What is no container and no tensor is a constant.
"""

import argparse
import collections
import collections.abc
import copy
import dataclasses
import enum
import types

import numpy as np
import torch

from pyrannc.errors import TraceError

_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, enum.Enum, torch.dtype, torch.device,
    torch.SymInt, torch.SymFloat, torch.SymBool, torch.nn.Module, torch.Generator,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip
_CONTAINERS = (
    list, tuple, collections.abc.Mapping, argparse.Namespace, types.SimpleNamespace,
)  # fmt: skip
# What a loop may write into: numbers in a row.
_WRITTEN = (np.ndarray, set, bytearray)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, np.generic, torch.dtype)


#: A constant that equals every other one.
ANY_NUMBER = object()


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The place of a tensor."""

    index: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that is part of the shape."""

    value: object

    def __eq__(self, other):
        return isinstance(other, Constant) and equal(self.value, other.value)

    __hash__ = None


@dataclasses.dataclass(frozen=True, eq=False)
class Object(Constant):
    """A constant with attributes, and what these were: a loop may set them."""

    attributes: dict

    def __eq__(self, other):
        return super().__eq__(other) and equal(self.attributes, _attributes(other.value))

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class Count:
    """The place of an integer that grows with the rows: ``fixed + per_row * rows``."""

    fixed: int
    per_row: int

    def at(self, rows) -> int:
        return self.fixed + self.per_row * rows


class NumberOfTensors:
    """Stands for a number that Python computes of tensors: ``of(their numbers)``."""

    def __init__(self, tensors, of):
        self.tensors, self.of = tensors, of


@dataclasses.dataclass(frozen=True)
class Number:
    """The place of such a number."""

    indices: tuple
    of: object

    def __eq__(self, other):
        return isinstance(other, Number) and self.indices == other.indices

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class Rows:
    """The place of a list or tuple of the rows of a tensor, as many as there are."""

    type: type
    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class Container:
    """A container: its type, the keys of its children, and what else builds it."""

    type: type
    keys: tuple
    children: tuple
    extra: object = None  # the default factory of a defaultdict, attributes of a dict subclass

    def __eq__(self, other):
        return (
            isinstance(other, Container)
            and (self.type, self.keys, self.children) == (other.type, other.keys, other.children)
            and equal(self.extra, other.extra)
        )

    __hash__ = None


def kept(shape):
    """``shape`` as it is now, for a comparison with later ones, whose constants may be the same
    objects with something else in them."""
    if isinstance(shape, Container):
        return dataclasses.replace(shape, children=tuple(map(kept, shape.children)))
    if not isinstance(shape, Constant):
        return shape
    if isinstance(shape.value, _WRITTEN):
        return Constant(copy.copy(shape.value))
    attributes = _attributes(shape.value)
    if not attributes:
        return shape
    return Object(shape.value, {name: copy.copy(each) for name, each in attributes.items()})


def _attributes(value) -> dict:
    """Those of an object that can be compared: numbers and the like, and a few of them together."""
    if isinstance(value, _ATOMS):
        return {}
    return {name: each for name, each in getattr(value, "__dict__", {}).items() if _is_data(each)}


def _is_data(value) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        return all(isinstance(each, _PLAIN) for each in value)
    return isinstance(value, (*_PLAIN, bytearray))


def equal(a, b) -> bool:
    """Whether two constants are the same; objects that cannot be compared are not."""
    if a is b or a is ANY_NUMBER or b is ANY_NUMBER:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(each, b[key]) for key, each in a.items())
    if isinstance(a, np.ndarray):
        return _equal_arrays(a, b)
    try:
        same = a == b
        return bool(same.all()) if hasattr(same, "all") else bool(same) or (a != a and b != b)
    except Exception:  # whatever a user's __eq__ raises: the call is then captured anew
        return False


def _equal_arrays(a, b) -> bool:
    """An entry that is not a number equals itself, too."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    try:
        same = a == b
        return bool(same.all() or (same | ((a != a) & (b != b))).all())
    except Exception:  # of the objects in it: the call is then captured anew
        return False


def _parts(value):
    """The children of a container as ``(key, child)``; None for what is no container."""
    if isinstance(value, _ATOMS):
        return None
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, collections.abc.Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    attributes = getattr(value, "__dict__", None)
    return None if attributes is None else list(attributes.items())


def _is_plain(value) -> bool:
    return isinstance(value, _CONTAINERS) or dataclasses.is_dataclass(value)


def _holds_tensor(value, seen) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    parts = _parts(value)
    if parts is None or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_holds_tensor(child, seen) for _, child in parts)


def _child_path(path: str, kind, key) -> str:
    """``path`` of a child of a container, as one would write it in Python: ``args[0].hidden``."""
    is_item = issubclass(kind, (list, tuple, collections.abc.Mapping))
    return f"{path}[{key!r}]" if is_item else f"{path}.{key}"


def flatten(tree, whole_of=None):
    """``(tensors, shape)`` of ``tree``, in the order of its containers. ``whole_of`` a list is the
    tensor of which it holds the rows, if any."""
    tensors = []
    return tensors, _take_tensors(tree, tensors, whole_of)


def _take_tensors(value, tensors, whole_of):
    """The shape of ``value``; appends its tensors to ``tensors``."""
    if whole_of is not None and type(value) in (list, tuple):
        whole = whole_of(value)
        if whole is not None:
            tensors.append(whole)
            return Rows(type(value), len(tensors) - 1)
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Tensor(len(tensors) - 1)
    if isinstance(value, NumberOfTensors):
        begin = len(tensors)
        tensors.extend(value.tensors)
        return Number(tuple(range(begin, len(tensors))), value.of)
    parts = _parts(value)
    # Other objects that hold no tensor are constants: what they are made of is nobody's business.
    if parts is None or not (_is_plain(value) or _holds_tensor(value, set())):
        return Constant(value)
    keys, children = zip(*parts, strict=True) if parts else ((), ())
    children = tuple([_take_tensors(child, tensors, whole_of) for child in children])
    extra = value.default_factory if isinstance(value, collections.defaultdict) else None
    return Container(type(value), keys, children, extra)


def paths(shape, path: str = "") -> list[str]:
    """The places of the tensors of a shape, in the order of :func:`flatten`: ``args[0].hidden``."""
    if isinstance(shape, Tensor | Rows):
        return [path]
    if isinstance(shape, (Constant, Count)):
        return []
    if isinstance(shape, Number):
        return [path] * len(shape.indices)
    return [
        found
        for key, child in zip(shape.keys, shape.children, strict=True)
        for found in paths(child, _child_path(path, shape.type, key))
    ]


def counts(shape, path: str = "") -> list[str]:
    """The same of the integers that grow with the rows."""
    if isinstance(shape, Count):
        return [path]
    if not isinstance(shape, Container):
        return []
    return [
        found
        for key, child in zip(shape.keys, shape.children, strict=True)
        for found in counts(child, _child_path(path, shape.type, key))
    ]


def unflatten(shape, tensors, rows=None, number=None):
    """The tree of ``shape`` with ``tensors`` in it, the inverse of :func:`flatten`; counts are
    those at this number of ``rows``, and ``number`` stands for each number of tensors."""
    if isinstance(shape, Tensor):
        return tensors[shape.index]
    if isinstance(shape, Rows):
        whole = tensors[shape.index]
        # What stands for an output that was not sent says so for the list, too.
        return shape.type(whole.unbind()) if isinstance(whole, torch.Tensor) else whole
    if isinstance(shape, Constant):
        return shape.value
    if isinstance(shape, Count):
        return shape.at(rows)
    if isinstance(shape, Number):
        if number is not None:
            return number
        return shape.of([tensors[index].item() for index in shape.indices])
    children = [unflatten(child, tensors, rows, number) for child in shape.children]
    kind = shape.type
    if issubclass(kind, tuple):
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    if issubclass(kind, list):
        return kind(children)
    items = dict(zip(shape.keys, children, strict=True))
    if kind is dict:
        return items
    if issubclass(kind, collections.defaultdict):
        return kind(shape.extra, items)
    if dataclasses.is_dataclass(kind) and issubclass(kind, dict):
        made = kind(**items)  # Hugging Face's ModelOutput
        # An OrderedDict keeps one that is set later at its end.
        if isinstance(made, collections.OrderedDict):
            for key in filter(made.__contains__, items):
                made.move_to_end(key)
        return made
    if issubclass(kind, collections.abc.Mapping):
        return kind(items)
    # Not that of a class of the user's, which may want arguments.
    base = types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object
    rebuilt = base.__new__(kind)
    for name, child in items.items():
        object.__setattr__(rebuilt, name, child)
    return rebuilt


def of_rows(shapes, rows):
    """The shape at any number of rows: that of a result at each of ``rows``, with a Count for each
    integer that differs.

    Raises:
        TraceError: They differ otherwise.
    """
    found = _joined(shapes, rows)
    for number, shape in zip(rows, shapes, strict=True):
        if differs := difference(at_rows(found, number), shape, "the result"):
            raise TraceError(f"the result of the model depends on the batch size: {differs}")
    return found


def _joined(shapes, rows):
    """The first of ``shapes``, with a Count for each integer that differs."""
    first, second, *_ = shapes
    if all(isinstance(shape, Container) and shape.keys == first.keys for shape in shapes):
        columns = zip(*(shape.children for shape in shapes), strict=True)
        return dataclasses.replace(first, children=tuple(_joined(each, rows) for each in columns))
    if all(isinstance(shape, Constant) and type(shape.value) is int for shape in shapes):
        per_row = (second.value - first.value) // (rows[1] - rows[0])
        if per_row != 0:
            return Count(first.value - per_row * rows[0], per_row)
    return first


def at_rows(shape, rows):
    """The shape at a number of rows, with constants for its counts."""
    if isinstance(shape, Count):
        return Constant(shape.at(rows))
    if not isinstance(shape, Container):
        return shape
    children = tuple(at_rows(child, rows) for child in shape.children)
    return dataclasses.replace(shape, children=children)


def difference(expected, got, path: str) -> str | None:
    """What differs between two shapes, naming the place; None when they are equal."""
    for kind in (Tensor, Number):
        if isinstance(expected, kind) and isinstance(got, kind):
            return None
    if isinstance(expected, Rows) and isinstance(got, Rows) and expected.type is got.type:
        return None
    if isinstance(expected, Constant) and isinstance(got, Constant):
        if expected == got:
            return None
        if isinstance(expected, Object) and equal(expected.value, got.value):
            return _attribute_difference(expected.attributes, _attributes(got.value), path)
        return f"{path} is {_short(got.value)}, but was {_short(expected.value)}"
    if not (isinstance(expected, Container) and isinstance(got, Container)):
        return f"{path} is {_kind(got)}, but was {_kind(expected)}"
    if expected.type is not got.type:
        return f"{path} is {_kind(got)}, but was {_kind(expected)}"
    if expected.keys != got.keys:
        missing = [key for key in expected.keys if key not in got.keys]
        added = [key for key in got.keys if key not in expected.keys]
        if not missing and not added:
            return f"{path} has its keys in another order"
        words = [f"no {key!r}" for key in missing] + [f"a new {key!r}" for key in added]
        return f"{path} has {' and '.join(words)}"
    for key, left, right in zip(expected.keys, expected.children, got.children, strict=True):
        if isinstance(left, Tensor) and isinstance(right, Tensor):  # most of them
            continue
        if found := difference(left, right, _child_path(path, expected.type, key)):
            return found
    return None


def _attribute_difference(expected, got, path: str) -> str:
    name = next(
        name
        for name in {**expected, **got}
        if not (name in expected and name in got and equal(expected[name], got[name]))
    )
    now, before = (_short(held[name]) if name in held else "not there" for held in (got, expected))
    return f"{path}.{name} is {now}, but was {before}"


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(shape) -> str:
    if isinstance(shape, Tensor):
        return "a tensor"
    if isinstance(shape, Rows):
        return f"a {shape.type.__name__} of rows"
    if isinstance(shape, Number):
        return "a number of a tensor"
    return _short(shape.value) if isinstance(shape, Constant) else f"a {shape.type.__name__}"
