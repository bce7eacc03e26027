"""Names of a wrapper that models use, too: the model's answer first."""

import dataclasses
import functools
import inspect

import torch

from pyrannc.errors import RaNNCError
from pyrannc.state.torch_private import ACCESSOR
from pyrannc.wrapper.on_all_ranks import OnAllRanks

#: Where the model has no attribute of that name, RaNNC's answers.
AFTER_THE_MODELS = ("config", "model", "plan")


class OwnNames:
    """RaNNC's own names, whatever the model calls its attributes: ``model.rannc.plan``.

    Attributes:
        config: The :class:`Config` of the wrapper.
        model: The wrapped model, which is also ``.module`` of the wrapper.
        plan: The plan at work; before the first call an error.

    What else :class:`RaNNCModule` has beyond a module is here, too.
    """

    def __init__(self, wrapper):
        self._wrapper = wrapper

    @property
    def config(self):
        return self._wrapper._given.config

    @property
    def model(self):
        return self._wrapper.module

    @property
    def plan(self):
        return self._wrapper._deployed("plan").plan

    def __getattr__(self, name):
        if name not in _own_names(self._wrapper):
            raise AttributeError(f"RaNNC has no '{name}' of its own")
        return getattr(self._wrapper, name)

    def __dir__(self):
        return sorted({*AFTER_THE_MODELS, *_own_names(self._wrapper)})


def _own_names(wrapper) -> set:
    """Of its class and of those between that and nn.Module."""
    kinds = type(wrapper).__mro__
    names = {name for kind in kinds[: kinds.index(torch.nn.Module)] for name in vars(kind)}
    return {name for name in names if not name.startswith("_")}


def is_own(wrapper, name: str) -> bool:
    """Whether it is an attribute of the wrapper itself, or of its class."""
    return name in wrapper.__dict__ or hasattr(type(wrapper), name)


def read(wrapper, name: str):
    """An attribute that the wrapper itself does not have."""
    of_model = getattr(wrapper.module, name, wrapper) if name in AFTER_THE_MODELS else None
    found = getattr(wrapper.rannc if of_model is wrapper else wrapper.module, name)
    return found.of_model if isinstance(found, OnAllRanks) else found


def write(wrapper, name: str, value) -> bool:
    """Writes what is read through the wrapper, and what is new: forward() may ask for it with
    ``getattr(self, name, default)``. Whether it was none of the wrapper's own attributes.

    Raises:
        AttributeError: It is RaNNC's, and cannot be replaced.
    """
    if name not in ("module", "rannc"):
        if is_own(wrapper, name):
            return False
        if hasattr(wrapper.module, name):
            caller = inspect.currentframe().f_back.f_back
            if name in wrapper.module._parameters and caller.f_globals["__name__"] == ACCESSOR:
                wrapper.module._parameters[name] = value
            else:
                setattr(wrapper.module, name, value)
            return True
        if name not in AFTER_THE_MODELS:
            # Another wrapped model, such as a teacher, is no part of this one.
            if isinstance(getattr(value, "rannc", None), OwnNames):
                return False
            setattr(wrapper.module, name, value)
            return True
        if name == "config":
            wrapper._given = dataclasses.replace(wrapper._given, config=value)
            return True
    raise AttributeError(
        f"'{name}' of a RaNNCModule cannot be replaced.\n  Wrap another model with RaNNCModule."
    )


def of_model(name: str, at_any_time=False):
    """The method ``name`` of nn.Module, with which a RaNNCModule gives its model something new:
    before the first call, or ``at_any_time`` where no plan has to know of it."""

    @functools.wraps(getattr(torch.nn.Module, name))
    def method(wrapper, *args, **kwargs):
        if wrapper._deployment is not None and not at_any_time:
            raise RaNNCError(
                f"{name}() after the first call, whose plan does not know what is new.\n  Call it "
                "before that, or wrap the changed model anew."
            )
        return getattr(wrapper.module, name)(*args, **kwargs)

    return method
