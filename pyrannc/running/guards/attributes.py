"""The guard of attributes: numbers, flags, strings, functions and tensors of a model's modules, and
of what is around them, with which its captured graphs compute.

The user may set ``dropout.p``, ``model.act = F.relu`` or ``model.args.beta`` after a capture, or
call PEFT's ``disable_adapter()``: a call with other attributes is of another kind.
"""

import torch

from pyrannc.capture.attributes.around import (
    names_in_class,
    places_read,
    read_by_calls,
    with_names_in_methods,
)
from pyrannc.capture.attributes.user_code import is_frame, is_of_user
from pyrannc.running.guards.around import Around
from pyrannc.running.guards.comparable import (
    NOTHING,
    PLAIN_TYPES,
    comparable,
    comparables,
)
from pyrannc.running.guards.guard import Guard

# Of nn.Module itself: torch changes them, and the mode of a module is compared by itself.
_OF_MODULE = {"training", *vars(torch.nn.Module())}


class Attributes(Guard):
    """The attributes of all modules of ``model``."""

    name = "attributes of the model"

    def __init__(self, model):
        held = [each for module in model.modules() for each in vars(module).values()]
        functions, names = read_by_calls(model)
        places = places_read(model, functions, names)
        around = [place.read() for place in places]
        self._wanted = with_names_in_methods(names, functions, [*held, *around])
        self._modules = [
            (path, module, type(module), _readable(module, self._wanted))
            for path, module in model.named_modules()
        ]
        self._around = Around(places, self._wanted)
        self._left_out = set()

    def leave_out(self, paths) -> None:
        """Attributes that forward() changes: a captured graph goes on with what they were."""
        self._left_out.update(paths)
        self._around.leave_out(self._left_out)

    def now(self, call=None) -> tuple:
        """Pairs of path and value, in the order of the modules; of dicts and objects what they
        hold, once. Of an attribute called ``config`` all that stands in it, as transformers' models
        compute with that."""
        found, configs, seen = [], {}, set()
        for path, module, kind, readable in self._modules:
            if type(module) is not kind:
                found.append((f"class of {path or 'the model'}", type(module)))
            for name, value in vars(module).items():
                if name in _OF_MODULE or name not in readable:
                    continue
                where = f"{path}.{name}" if path else name
                if name == "config" and hasattr(value, "__dict__"):
                    configs.setdefault(id(value), (path, value))
                elif where in self._left_out:
                    continue
                elif type(value) in PLAIN_TYPES:  # most of them
                    found.append((where, value))
                else:
                    found += comparables(where, value, self._wanted, seen)
        for path, config in configs.values():
            for name, value in vars(config).items():
                if (plain := comparable(value)) is not NOTHING:
                    found.append((f"{path}.config.{name}" if path else f"config.{name}", plain))
        found += self._around.now()
        return tuple([pair for pair in found if pair[0] not in self._left_out])

    def difference(self, then, now):
        paths, new = changed(then, now), dict(now)
        shown = ", ".join(f"{path} = {new.get(path)!r}" for path in paths[:2])
        return f"{shown} and {len(paths) - 2} more" if len(paths) > 2 else shown


def _readable(module, wanted):
    """Names of attributes with which ``module`` may compute. What a script puts there under a name
    that a call does not read, such as a list of losses, is for the script."""
    kinds = [kind for kind in type(module).__mro__ if not is_frame(kind)]
    return wanted.union(*(names_in_class(kind) for kind in kinds if not is_of_user(kind)))


def changed(before: tuple, now: tuple) -> list[str]:
    """The paths whose values differ."""
    old, new = dict(before), dict(now)
    found = [path for path in new if old.get(path, NOTHING) != new[path]]
    return found + [path for path in old if path not in new]
