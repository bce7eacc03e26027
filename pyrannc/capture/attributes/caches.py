"""Tensors that ``functools.lru_cache`` keeps for the user's functions, such as masks by length."""

import functools
import gc

import torch

from pyrannc.capture.attributes import user_code

_CONTAINERS = (tuple, list, dict)
_CACHE = type(functools.cache(len))


class UserCaches:
    """Of the user's functions that there are when it is made: to find them takes as long as half
    a million objects of Python take to go through. At the end of its block they hold no tensors."""

    def __init__(self):
        # Not isinstance(), which asks proxies.
        found = [each for each in gc.get_objects() if type(each) is _CACHE]
        self._caches = [each for each in found if _is_of_user(each.__wrapped__)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.forget_tensors()

    def forget_tensors(self) -> None:
        """Empties those that hold tensors: what one trace has made is nothing to another, or to
        the model when it runs by itself, and what was made before is no part of the trace. The
        functions compute it again."""
        for cache in self._caches:
            if _holds_tensors(cache):
                cache.cache_clear()


def _is_of_user(function) -> bool:
    has_module = getattr(function, "__module__", None)  # builtins may have none
    return bool(has_module) and user_code.is_of_user(function)


def _holds_tensors(cache) -> bool:
    open_, seen = [gc.get_referents(cache)], set()
    while open_:
        for value in open_.pop():
            if isinstance(value, torch.Tensor):
                return True
            # Of an entry with a limit on their number Python tells only what it refers to.
            is_entry = type(value).__name__ == "_lru_list_elem"
            if (is_entry or isinstance(value, _CONTAINERS)) and id(value) not in seen:
                seen.add(id(value))
                open_.append(gc.get_referents(value))
    return False
