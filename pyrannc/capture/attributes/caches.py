"""Tensors that ``functools.lru_cache`` keeps for the user's functions, such as masks by length."""

import functools
import gc

import torch

from pyrannc.capture.attributes import user_code

_CONTAINERS = (tuple, list, dict)
_CACHE = type(functools.cache(len))


def forget_tensors() -> None:
    """Empties the caches of the user's functions that hold tensors: what one trace has made is
    nothing to another, or to the model when it runs by itself, and what was made before is no part
    of the trace. The functions compute it again."""
    for found in gc.get_objects():
        if type(found) is not _CACHE:  # isinstance() asks proxies
            continue
        has_module = getattr(found.__wrapped__, "__module__", None)  # builtins may have none
        if has_module and user_code.is_of_user(found.__wrapped__) and _holds_tensors(found):
            found.cache_clear()


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
