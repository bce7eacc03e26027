"""Numbers, flags and strings of a model's modules, with which its captured graphs compute.

The user may set ``dropout.p`` or ``model.beta`` after a capture, or call PEFT's
``disable_adapter()``: a call with other attributes is of another kind.
"""

import torch

# Of nn.Module itself: torch changes them, and the mode of a module is compared by itself.
_OF_MODULE = {"training", *vars(torch.nn.Module())}
#: Elements of a list that is compared.
#: tuned by: a safety margin: lists of settings have a few elements.
#: without it: a list with an entry for each class or token would be gone through in every call.
_MOST_ELEMENTS = 16
_PLAIN = bool | int | float | str | None
_NOTHING = object()


class Attributes:
    """Reads the attributes of all modules of ``model``."""

    def __init__(self, model):
        self._modules = list(model.named_modules())
        self._left_out = set()

    def leave_out(self, paths) -> None:
        """Attributes that forward() changes: a captured graph goes on with what they were."""
        self._left_out.update(paths)

    def now(self) -> tuple:
        """Pairs of path and value, in the order of the modules. Of an attribute called ``config``
        also what stands in it, as transformers' models compute with that."""
        found, configs = [], {}
        for path, module in self._modules:
            for name, value in vars(module).items():
                if name in _OF_MODULE:
                    continue
                if name == "config" and hasattr(value, "__dict__"):
                    configs.setdefault(id(value), (path, value))
                elif (plain := _plain(value)) is not _NOTHING:
                    found.append((f"{path}.{name}" if path else name, plain))
        for path, config in configs.values():
            for name, value in vars(config).items():
                if (plain := _plain(value)) is not _NOTHING:
                    found.append((f"{path}.config.{name}" if path else f"config.{name}", plain))
        return tuple(pair for pair in found if pair[0] not in self._left_out)


def difference(before: tuple, now: tuple) -> str:
    """The attributes that differ, as text; empty when none does."""
    old, new = dict(before), dict(now)
    changed = [path for path in new if old.get(path, _NOTHING) != new[path]]
    changed += [path for path in old if path not in new]
    shown = ", ".join(f"{path} = {new.get(path)!r}" for path in changed[:2])
    return f"{shown} and {len(changed) - 2} more" if len(changed) > 2 else shown


def _plain(value):
    if isinstance(value, _PLAIN):
        return value
    if not isinstance(value, list | tuple) or len(value) > _MOST_ELEMENTS:
        return _NOTHING
    return tuple(value) if all(isinstance(each, _PLAIN) for each in value) else _NOTHING
