"""What the modules of a model hold as attributes, and what stands around them, which a run of
forward() may change."""

import collections
import contextlib
import numbers
import operator

import torch
from torch import nn

from pyrannc import log
from pyrannc.capture.arguments.pytree import NumberOfTensors
from pyrannc.capture.attributes.around import Place, of_dict, places_around
from pyrannc.capture.attributes.user_code import is_object

# What modules keep things in; hooks are in OrderedDicts.
CONTAINERS = (list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque)
REGISTRIES = ("_parameters", "_buffers", "_modules")
TENSOR = object()  # stands where forward() has left a tensor
OBJECT = object()  # and an object that holds one

_PLAIN = (numbers.Number, str, bytes, torch.dtype, torch.device)
# These are torch's: hooks, what is registered (by other rules), and nn.LSTM's list of weights.
_NOT_OF_THE_USER = set(vars(nn.Module())) - {"training"} | {"_flat_weights", "_flat_weight_refs"}


@contextlib.contextmanager
def kept(model):
    """Everything that a module holds is as before afterwards, what objects in it hold, and what
    stands around the model."""
    saved = []
    around = [
        (place, value, copied(value) if type(value) in CONTAINERS else None)
        for place, value in _around(model)
    ]
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
                if not are_the_same(held, value):
                    fill(held, value)
            if not are_the_same(vars(module), attributes):
                vars(module).clear()
                vars(module).update(attributes)
        for place, value, content in around:
            if (now := place.read()) is not value and (_is_kept(now) or _is_kept(value)):
                place.write(value)
            if content is not None and not are_the_same(value, content):
                fill(value, content)


def fill(held, content) -> None:
    """A container holds what another one does."""
    held.clear()
    held.extend(content) if hasattr(held, "extend") else held.update(content)


def _around(model):
    return [(place, place.read()) for place in places_around(model)]


def copied(value):
    """A copy of a container; else ``value`` itself."""
    return value.copy() if type(value) in CONTAINERS else value


def _is_kept(value) -> bool:
    """Whether it is data: no function, module or class."""
    kinds = (torch.Tensor, NumberOfTensors, tuple, *_PLAIN, *CONTAINERS)
    return value is None or isinstance(value, kinds) or is_object(value)


def are_the_same(one, other) -> bool:
    """Two containers hold the same objects, in one order."""
    if isinstance(one, set):
        return one == other
    if isinstance(one, dict):
        one, other = [*one, *one.values()], [*other, *other.values()]
    return len(one) == len(other) and all(map(operator.is_, one, other))


def holders(model) -> dict:
    """By their paths, the modules, and objects of the user's classes in attributes of them or of
    one another, or around them."""
    found = dict(model.named_modules())
    seen = set(map(id, found.values()))
    waiting = [
        (f"{path}.{name}" if path else name, value)
        for path, module in found.items()
        for name, value in vars(module).items()
    ]
    waiting += [(place.path, value) for place, value in _around(model)]
    while waiting:
        path, value = waiting.pop()
        if id(value) not in seen and is_object(value):
            seen.add(id(value))
            found[path] = value
            waiting += [(f"{path}.{name}", each) for name, each in vars(value).items()]
    return found


def snapshot(model) -> dict:
    """Copies of what :func:`attributes` gives, for :func:`changed`."""
    return {path: copied(value) for path, value in attributes(model).items()}


def attributes(model) -> dict:
    """The attributes of all holders now, and what stands around the model, by their path."""
    found = {place.path: value for place, value in _around(model) if _is_kept(value)}
    found |= {
        f"{path}.{name}" if path else name: value
        for path, module in holders(model).items()
        for name, value in vars(module).items()
        if name not in _NOT_OF_THE_USER
    }
    return found


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
    """Sets attributes by their paths, and fills containers with what others hold."""
    for path, place in places_of(model, values).items():
        now, value = place.read(), values[path]
        if type(now) in CONTAINERS and type(value) is type(now):
            fill(now, value)
        else:
            place.write(value)


def places_of(model, paths) -> dict:
    """The places of attributes, by their paths; what forward() has made itself has none."""
    around = {place.path: place for place, _ in _around(model)}
    modules, found = holders(model), {}
    for path in paths:
        module, _, name = path.rpartition(".")
        if path in around:
            found[path] = around[path]
        elif module in modules:
            found[path] = Place(path, *of_dict(vars(modules[module]), name), of_model=True)
    return found


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
    if isinstance(value, torch.Tensor | NumberOfTensors):
        return TENSOR
    if is_object(value):
        return OBJECT if any(map(_holds_one, map(_marked, vars(value).values()))) else value
    return mapped(_marked, value)


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
