"""Which code and which objects are a user's."""

import argparse
import functools
import sys
import types

import torch
from torch import nn

# Classes of these packages keep what they like.
LIBRARIES = ("torch", "builtins", "pyrannc", "transformers", "peft", "accelerate", "lightning")
# These are no objects of a user's.
_NO_OBJECTS = (
    nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType,
    functools.partial,
)  # fmt: skip

_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)


def is_frame(kind) -> bool:
    """Whether a class is none of a model's own but that of all modules, torch's or Lightning's."""
    return kind in (nn.Module, object) or kind.__module__.partition(".")[0] == "lightning"


def is_object(value) -> bool:
    return has_attributes(value) and is_of_user(type(value))


def has_attributes(value) -> bool:
    """Whether it is an object with attributes, also a library's, as an optimizer is."""
    return hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS)


def is_class_of_user(value) -> bool:
    """Whether it is one that may hold settings, which those of modules are not taken for."""
    return isinstance(value, type) and is_of_user(value) and not issubclass(value, nn.Module)


def is_of_user(kind) -> bool:
    """Whether the code of a class or function is no library's: objects of others, as loggers are,
    may be in use."""
    return kind in _NAMESPACES or is_of_users_file(kind.__module__)


def is_module_of_user(value) -> bool:
    return isinstance(value, types.ModuleType) and is_of_users_file(value.__name__)


@functools.cache
def is_of_users_file(name) -> bool:
    """Whether the module of this name is no library's."""
    package = name.partition(".")[0]
    if package in LIBRARIES or package in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return package == "__main__" or (file is not None and "site-packages" not in file)
