"""What ``state_dict()`` gives the ranks other than 0: nothing, which says so where a script goes on
with it as if it were the model's state.
"""

import collections
import contextlib
import inspect
import os
import sys

from torch import nn

from pyrannc import log
from pyrannc.errors import RaNNCError
from pyrannc.optimizer.state.named_state import ON_RANK_0

_told = [False]  # that a script goes through an empty one: once in a process
_LOADS = nn.Module.load_state_dict.__code__


class StateOnRank0(collections.OrderedDict):
    """An empty dict, in whose place rank 0 has the state."""

    def __init__(self, rank=1):
        super().__init__()
        self._rank = rank

    def __missing__(self, name):
        raise RaNNCError(
            f"state_dict() of a RaNNCModule gave rank {self._rank} no '{name}': rank 0 has the "
            "whole.\n  Where every rank needs it, call state_dict(rank0_only=False), on all ranks."
        )

    def __iter__(self):
        self._look(inspect.currentframe().f_back)
        return super().__iter__()

    def keys(self):
        self._look(inspect.currentframe().f_back)
        return super().keys()

    def values(self):
        self._look(inspect.currentframe().f_back)
        return super().values()

    def items(self):
        self._look(inspect.currentframe().f_back)
        return super().items()

    def copy(self):
        return StateOnRank0(self._rank)

    __copy__ = copy

    def __deepcopy__(self, memo):
        return self.copy()

    def __reduce__(self):  # a plain one, as torch.load() knows no classes but its own
        return collections.OrderedDict, ()

    def _look(self, frame):
        """``frame``: that goes through it. What a library does there is its own affair."""
        if len(self):  # a script has put something in
            return
        if frame.f_code is _LOADS:
            raise RaNNCError(
                "load_state_dict() of a module that is not wrapped, or not called yet, gets what "
                f"state_dict() of a RaNNCModule gave rank {self._rank}, which is empty: rank 0 has "
                "the whole.\n  Call state_dict(rank0_only=False), on all ranks."
            )
        if _told[0] or "site-packages" in frame.f_code.co_filename or _is_own(frame):
            return
        _told[0] = True
        log.warn(
            "module",
            f"{frame.f_code.co_filename}:{frame.f_lineno} goes through a state_dict() of a "
            f"RaNNCModule, of which rank {self._rank} has nothing: what is made of it is made on "
            "rank 0 alone. Where every rank needs it, call state_dict(rank0_only=False)",
        )


def _is_own(frame) -> bool:
    name = frame.f_globals.get("__name__", "").partition(".")[0]
    return name == "pyrannc" or name in sys.stdlib_module_names - {"__main__"}


def given_to(rank, destination) -> dict:
    """What ``rank`` gets; ``destination``: None, or that of an outer module, with more in it."""
    if destination is None:
        return StateOnRank0(rank)
    with contextlib.suppress(AttributeError):  # a plain dict, which no module of torch hands on
        setattr(destination, ON_RANK_0, True)
    return destination


def is_in(tree) -> bool:
    """Whether a rank other than 0 has got it, or a part of it, in place of rank 0's."""
    if isinstance(tree, StateOnRank0) or getattr(tree, ON_RANK_0, False):
        return True
    if isinstance(tree, dict):
        return ON_RANK_0 in tree or any(map(is_in, tree.values()))
    return isinstance(tree, list | tuple) and any(map(is_in, tree))


def save(theirs, obj, f, *args, **kwargs):
    """torch.save(): where all ranks write one file, as a script for one process has it, that is
    rank 0's."""
    if isinstance(f, str | os.PathLike) and is_in(obj):
        return None
    return theirs(obj, f, *args, **kwargs)
