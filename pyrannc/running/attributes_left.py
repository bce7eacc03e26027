"""Tensors that forward() leaves in attributes of modules, and in lists and globals around them.

A captured graph leaves none. A script that adds ``layer.aux_loss`` to its loss would go on with
what stood there before the first call; so a value stands there that says so when it is used.
"""

import contextlib
from collections import deque

import torch

from pyrannc.capture.attributes.module_attributes import (
    OBJECT,
    TENSOR,
    are_the_same,
    fill,
    mapped,
    places_of,
)  # fmt: skip
from pyrannc.errors import RaNNCError


class _NotThere(torch.Tensor):
    """Stands for a tensor that only the Python of forward() would have made; has its ``place``, a
    :class:`~pyrannc.capture.attributes.around.Place`."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        _refuse(next(each for each in _flat((args, kwargs)) if isinstance(each, cls)))

    def __repr__(self, **_):
        return f"<tensor of '{self.place.path}', which a captured graph does not set>"


class _ObjectNotThere:
    """The same of an object that holds one."""

    def __init__(self, place):
        self.place = place

    def __getattr__(self, name):
        if name.startswith("__"):  # what Python looks for in any object
            raise AttributeError(name)
        _refuse(self)


_STANDS = _NotThere, _ObjectNotThere


class AttributesLeft:
    """Puts such values into a model before each call, and takes them away for each capture.

    What forward() puts into a list or dict stays in that one, which the script may hold, too.
    """

    def __init__(self, model):
        self._model = model
        self._put = {}  # path -> (place, value that says so)
        self._own = {}  # path -> what the model has had there; of a container, what was in it

    def add(self, left: dict) -> None:
        """``left``: the ``tensors_left`` of a capture."""
        for path, place in places_of(self._model, left).items():
            self._put[path] = place, _saying_so(left[path], place)

    def put(self) -> None:
        """To be called before each call; what a script has set since is the model's own."""
        for path, (place, value) in self._put.items():
            now = place.read()
            if _is_there(now, value):
                continue
            if _are_containers(now, value):
                self._own[path] = _own_of(now, self._own.get(path))
                fill(now, value)
            else:
                self._own[path] = now
                place.write(value)

    def take(self) -> None:
        for path, (place, value) in self._put.items():
            now = place.read()
            if not _is_there(now, value):
                continue
            if now is value:
                place.write(self._own[path])
            else:
                fill(now, self._own[path])

    @contextlib.contextmanager
    def taken(self):
        """Inside, the model has its own attributes, as its Python runs."""
        self.take()
        try:
            yield
        finally:
            self.put()


def _are_containers(*values) -> bool:
    """Of one kind, that can be filled."""
    return any(all(isinstance(each, kind) for each in values) for kind in (list, dict, deque))


def _own_of(now, before):
    """What a script has in a container, into which values were put that say so."""
    if isinstance(now, dict):
        return {
            key: (before or {}).get(key) if isinstance(each, _STANDS) else each
            for key, each in now.items()
        }
    return [each for each in now if not isinstance(each, _STANDS)]


def _is_there(now, value) -> bool:
    return now is value or (_are_containers(now, value) and are_the_same(now, value))


def _saying_so(value, place):
    if value is TENSOR:
        found = torch.empty(0).as_subclass(_NotThere)
        found.place = place
        return found
    if value is OBJECT:
        return _ObjectNotThere(place)
    return mapped(lambda each: _saying_so(each, place), value)


def _refuse(value):
    where = "of the model is a tensor that forward() leaves in an attribute"
    if not value.place.of_model:
        where = "is outside of the model, and a tensor that forward() leaves there"
    raise RaNNCError(
        f"'{value.place.path}' {where}. The model runs as a captured graph, which does not set it: "
        "it is not here.\n  Return it from forward(), as a part of the loss or beside it."
    )


def _flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [found for each in value for found in _flat(each)]
    return [value]
