"""Numbers, flags and strings that the code of a model's modules reads from around it.

``forward()`` may read ``ALPHA`` of its file, or ``args.alpha`` of a function that has made the
class. A captured graph has them as constants; so they are compared before each call, as attributes
of modules are.
"""

import argparse
import dataclasses
import inspect
import types

from pyrannc.capture.module_attributes import LIBRARIES
from pyrannc.running.attributes.comparable import NOTHING, comparable


class Around:
    """Reads what the code of the modules of ``model`` names."""

    def __init__(self, model):
        self._places = {}  # how it is called -> what reads it now
        functions = []
        for kind in {kind for module in model.modules() for kind in type(module).__mro__}:
            if kind.__module__.partition(".")[0] not in LIBRARIES:  # which scripts leave alone
                functions += [each for each in map(_function, vars(kind).values()) if each]
        seen = set()
        while functions:
            function = functions.pop()
            if function.__code__ not in seen:
                seen.add(function.__code__)
                functions += self._add(function)

    def now(self):
        """Pairs of name and value."""
        for name, (read, key) in self._places.items():
            yield from _values(name, read(key))

    def _add(self, function) -> list:
        """Returns the functions of the same file that it may call."""
        others = []
        file, names = function.__module__, set(_names(function.__code__))
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, types.FunctionType):
                others += [value] if value.__module__ == file else []
            elif next(iter(_values(name, value)), None):
                self._places[f"{file}.{name}"] = function.__globals__.get, name
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if next(iter(_values(name, _content(cell))), None):
                self._places[f"{function.__qualname__} reads {name}"] = _content, cell
        return others


def _function(value):
    value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)) or value)
    return value if isinstance(value, types.FunctionType) else None


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # is not set yet
        return NOTHING


def _values(name, value):
    """Pairs of name and plain value: of itself, or of what an object of settings holds."""
    settings = isinstance(value, argparse.Namespace | types.SimpleNamespace)
    if settings or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        held = vars(value)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        held = value
    else:
        if (found := comparable(value)) is not NOTHING:
            yield name, found
        return
    for key, each in held.items():
        if (found := comparable(each)) is not NOTHING:
            yield f"{name}.{key}", found
