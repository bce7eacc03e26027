"""Numbers, texts, tensors and nested collections of them, as JSON and a table of tensors.

No pickle: what comes from a file is nothing but data. What is anything else is an error that says
where it stands. Single numbers of numpy become Python's.
"""

import collections
import math

import numpy
import torch

from pyrannc.errors import RaNNCError

_KIND = "$"  # the key of what JSON has no form for


def encode(value, path: str, tensors: dict[str, torch.Tensor]):
    """``value`` in JSON's types; its tensors go into ``tensors``, by their paths.

    Args:
        path: Of the value itself, for tensors and errors: ``scheduler``, ``extra``.

    Raises:
        RaNNCError: Something in it is neither of these types nor a tensor; names its path.
    """
    if isinstance(value, torch.Tensor):
        while path in tensors:  # as in {"a.b": x, "a": {"b": y}} or {1: x, "1": y}
            path += "'"
        tensors[path] = value.detach()
        return {_KIND: "tensor", "path": path}
    if isinstance(value, numpy.bool_ | numpy.integer | numpy.floating):
        value = value.item()  # a rate by numpy's cosine, a step counted by it
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and type(value).__module__ == "builtins":
        return value
    if isinstance(value, float):
        finite = math.isfinite(value)
        return float(value) if finite else {_KIND: "float", "text": repr(float(value))}
    if isinstance(value, list) and type(value) is list:
        return [encode(each, f"{path}.{i}", tensors) for i, each in enumerate(value)]
    if isinstance(value, tuple) and type(value) is tuple:
        return {_KIND: "tuple", "items": encode(list(value), path, tensors)}
    if type(value) in (dict, collections.OrderedDict, collections.defaultdict):
        if all(isinstance(key, str) and key != _KIND for key in value):
            return {key: encode(each, f"{path}.{key}", tensors) for key, each in value.items()}
        return {_KIND: "dict", "items": _pairs(value, path, tensors)}
    if type(value) is collections.Counter:  # torch's MultiStepLR has its milestones in one
        return {_KIND: "counter", "items": _pairs(value, path, tensors)}
    raise RaNNCError(
        f"'{path}' is a {type(value).__module__}.{type(value).__qualname__}, and a checkpoint "
        "holds tensors, numbers, texts, None, and lists, tuples and dicts of them.\n  Save what it "
        "is made of, or leave it out."
    )


def _pairs(value, path, tensors):
    return [
        [encode(key, path, tensors), encode(each, f"{path}.{key}", tensors)]
        for key, each in value.items()
    ]


def decode(value, tensors: dict[str, torch.Tensor]):
    """What :func:`encode` was given; ``tensors``: by path."""
    if isinstance(value, list):
        return [decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: decode(each, tensors) for key, each in value.items()}
    if kind == "tensor":
        return tensors[value["path"]]
    if kind == "float":
        return float(value["text"])
    items = decode(value["items"], tensors)
    if kind == "tuple":
        return tuple(items)
    return collections.Counter(dict(items)) if kind == "counter" else dict(items)


def tensor_paths(value) -> list[str]:
    """The paths of the tensors in an encoded value."""
    if isinstance(value, list):
        return [path for each in value for path in tensor_paths(each)]
    if not isinstance(value, dict):
        return []
    if value.get(_KIND) == "tensor":
        return [value["path"]]
    return [path for each in value.values() for path in tensor_paths(each)]
