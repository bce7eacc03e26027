"""Numbers, flags and strings that the code of a model's modules reads from around it.

``forward()`` may read ``ALPHA`` of its file, or ``args.alpha`` of a function that has made the
class. A captured graph has them as constants; so they are compared before each call, as attributes
of modules are.
"""

import argparse
import dataclasses
import types

from pyrannc.capture.attributes.around import ABSENT, places_around
from pyrannc.running.attributes.comparable import NOTHING, comparable


class Around:
    """Reads what the code of the modules of ``model`` names."""

    def __init__(self, model):
        self._places = [
            place
            for place in places_around(model)
            if next(iter(_values(place.path, place.read())), None)
        ]

    def leave_out(self, paths) -> None:
        """Places that forward() changes."""
        self._places = [place for place in self._places if place.path not in paths]

    def now(self):
        """Pairs of path and value."""
        for place in self._places:
            yield from _values(place.path, place.read())


def _values(name, value):
    """Pairs of name and plain value: of itself, or of what an object of settings holds."""
    if value is ABSENT:
        return
    settings = isinstance(value, argparse.Namespace | types.SimpleNamespace)
    if settings or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        held = vars(value)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        held = value
    else:
        if (found := comparable(value)) is not NOTHING:
            yield name, found
        return
    for key, each in held.items():
        if (found := comparable(each)) is not NOTHING:
            yield f"{name}.{key}", found
