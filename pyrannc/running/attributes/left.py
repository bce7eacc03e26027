"""Tensors that forward() leaves in attributes of modules.

A captured graph leaves none. A script that adds ``layer.aux_loss`` to its loss would go on with
what stood there before the first call; so a value stands there that says so when it is used.
"""

import contextlib

import torch

from pyrannc.capture.module_attributes import OBJECT, TENSOR, holders, mapped
from pyrannc.errors import RaNNCError

_ABSENT = object()


class _NotThere(torch.Tensor):
    """Stands for a tensor that only the Python of forward() would have made; has its ``place``,
    the attribute's path."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        _refuse(next(each for each in _flat((args, kwargs)) if isinstance(each, cls)))

    def __repr__(self, **_):
        return f"<tensor of '{self.place}', which a captured graph does not set>"


class _ObjectNotThere:
    """The same of an object that holds one."""

    def __init__(self, place):
        self.place = place

    def __getattr__(self, name):
        if name.startswith("__"):  # what Python looks for in any object
            raise AttributeError(name)
        _refuse(self)


class AttributesLeft:
    """Puts such values into a model before each call, and takes them away for each capture."""

    def __init__(self, model):
        self._modules = holders(model)
        self._put = {}  # path -> (attributes of the module, name, value that says so)
        self._own = {}  # path -> what the model has had there

    def add(self, left: dict) -> None:
        """``left``: the ``tensors_left`` of a capture."""
        for path, value in left.items():
            module, _, name = path.rpartition(".")
            if module in self._modules:  # else forward() has made the module, too
                self._put[path] = vars(self._modules[module]), name, _saying_so(value, path)

    def put(self) -> None:
        """To be called before each call; what a script has set since is the model's own."""
        for path, (held, name, value) in self._put.items():
            if (now := held.get(name, _ABSENT)) is not value:
                self._own[path] = now
                held[name] = value

    def take(self) -> None:
        for path, (held, name, value) in self._put.items():
            if held.get(name) is value and self._own[path] is _ABSENT:
                del held[name]
            elif held.get(name) is value:
                held[name] = self._own[path]

    @contextlib.contextmanager
    def taken(self):
        """Inside, the model has its own attributes, as its Python runs."""
        self.take()
        try:
            yield
        finally:
            self.put()


def _saying_so(value, path):
    if value is TENSOR:
        found = torch.empty(0).as_subclass(_NotThere)
        found.place = path
        return found
    if value is OBJECT:
        return _ObjectNotThere(path)
    return mapped(lambda each: _saying_so(each, path), value)


def _refuse(value):
    raise RaNNCError(
        f"'{value.place}' of the model is a tensor that forward() leaves in an attribute. The "
        "model runs as a captured graph, which does not set it: it is not here.\n  Return it from "
        "forward(), as a part of the loss or beside it."
    )


def _flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [found for each in value for found in _flat(each)]
    return [value]
