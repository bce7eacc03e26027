"""What the modules of a model hold as attributes, which a run of forward() may change."""

import argparse
import collections
import contextlib
import functools
import numbers
import sys
import types

import torch
from torch import nn

from pyrannc import log

# What modules keep things in; hooks are in OrderedDicts.
CONTAINERS = (list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque)
REGISTRIES = ("_parameters", "_buffers", "_modules")
TENSOR = object()  # stands where forward() has left a tensor
OBJECT = object()  # and an object that holds one

# Classes of these packages keep what they like.
LIBRARIES = ("torch", "builtins", "pyrannc", "transformers", "peft", "accelerate", "lightning")
# These are no objects of a user's.
_NO_OBJECTS = (
    nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType,
    functools.partial,
)  # fmt: skip

_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)

_PLAIN = (numbers.Number, str, bytes, torch.dtype, torch.device)
# These are torch's: hooks, what is registered (by other rules), and nn.LSTM's list of weights.
_NOT_OF_THE_USER = set(vars(nn.Module())) - {"training"} | {"_flat_weights", "_flat_weight_refs"}


@contextlib.contextmanager
def kept(model):
    """Everything that a module holds is as before afterwards, and what objects in it hold."""
    saved = []
    for module in holders(model).values():
        attributes = dict(vars(module))
        contents = {
            name: value.copy()
            for name, value in attributes.items()
            if type(value) in CONTAINERS or name in REGISTRIES
        }
        saved.append((module, attributes, contents))
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            for name, value in contents.items():
                held = attributes[name]
                held.clear()
                held.extend(value) if hasattr(held, "extend") else held.update(value)
            vars(module).clear()
            vars(module).update(attributes)


def holders(model) -> dict:
    """By their paths, the modules, and objects of the user's classes in attributes of them or of
    one another."""
    found = dict(model.named_modules())
    seen = set(map(id, found.values()))
    waiting = [
        (f"{path}.{name}" if path else name, value)
        for path, module in found.items()
        for name, value in vars(module).items()
    ]
    while waiting:
        path, value = waiting.pop()
        if id(value) not in seen and _is_object(value):
            seen.add(id(value))
            found[path] = value
            waiting += [(f"{path}.{name}", each) for name, each in vars(value).items()]
    return found


def snapshot(model) -> dict:
    """The attributes of all holders now, by their path; for :func:`changed`."""
    return {
        f"{path}.{name}" if path else name: value.copy() if type(value) in CONTAINERS else value
        for path, module in holders(model).items()
        for name, value in vars(module).items()
        if name not in _NOT_OF_THE_USER
    }


def changed(before, model) -> dict:
    """The attributes that are not what they were at the snapshot ``before``, by their path; of
    another object none of its own."""
    absent = object()
    found = {
        path: value
        for path, value in snapshot(model).items()
        if not _same(before.get(path, absent), value)
    }
    return {path: value for path, value in found.items() if path.rpartition(".")[0] not in found}


def are_plain(changes) -> bool:
    """Whether all of ``changes``, what changed() returns, are numbers, strings and the like."""
    return bool(changes) and all(map(_is_plain, changes.values()))


def counters(once, twice) -> list[str]:
    """The paths of integers that change in each of two calls. ``once``, ``twice``: changed() after
    the first and after the second."""
    return [
        path
        for path, value in twice.items()
        if type(value) is int and type(once.get(path)) is int and value != once[path]
    ]


def put(model, values) -> None:
    """Sets attributes by their paths."""
    modules = holders(model)
    for path, value in values.items():
        module, _, name = path.rpartition(".")
        vars(modules[module])[name] = value


def tensors_left(changes) -> dict:
    """Those of ``changes`` that are tensors or hold some, with ``TENSOR`` or ``OBJECT`` in their
    places."""
    found = {path: _marked(value) for path, value in changes.items()}
    return {path: value for path, value in found.items() if _holds_one(value)}


def mapped(function, value):
    """``value`` with ``function`` of each item, where it is a container; else itself."""
    if isinstance(value, dict):
        return {key: function(each) for key, each in value.items()}
    if type(value) in (list, tuple, collections.deque):
        return type(value)(function(each) for each in value)
    return value


def without_marks(changes) -> list[str]:
    """The paths of ``changes`` but of such that say that something has been done once."""
    marks = [path for path, value in changes.items() if _is_mark(path, value)]
    if marks:
        log.debug(
            "frontend",
            "guessed which changed attributes only say that something has been done once: "
            + ", ".join(marks),
        )
    return [path for path in changes if path not in marks]


def _marked(value):
    """An object that forward() has made is not there, like a tensor."""
    if isinstance(value, torch.Tensor):
        return TENSOR
    if _is_object(value):
        return OBJECT if any(map(_holds_one, map(_marked, vars(value).values()))) else value
    return mapped(_marked, value)


def _is_object(value) -> bool:
    kept_by_users = hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS)
    return kept_by_users and _is_of_user(type(value))


@functools.cache
def _is_of_user(kind) -> bool:
    """Whether its code is no library's: objects of others, as loggers are, may be in use."""
    if kind in _NAMESPACES:
        return True
    package = kind.__module__.partition(".")[0]
    if package in LIBRARIES or package in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return package == "__main__" or (file is not None and "site-packages" not in file)


def _holds_one(value) -> bool:
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple, collections.deque)):
        return any(map(_holds_one, items))
    return value is TENSOR or value is OBJECT


def _is_plain(value) -> bool:
    if isinstance(value, dict):
        return _is_plain(list(value)) and _is_plain(list(value.values()))
    if isinstance(value, (list, tuple, set, collections.deque)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _PLAIN)


def _is_mark(path, value) -> bool:
    """`self._installed = True`: something that needs to be done once has been done."""
    return path.rpartition(".")[2].startswith("_") and isinstance(value, bool)


def _same(before, after) -> bool:
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(after, (*_PLAIN, set)):
        return before == after
    if isinstance(after, dict):
        return list(before) == list(after) and _same(list(before.values()), list(after.values()))
    if isinstance(after, (list, tuple, collections.deque)):
        return len(before) == len(after) and all(map(_same, before, after))
    return False
