"""Numbers, tensors and the like that the code of a model's modules reads from around it.

``forward()`` may read ``ALPHA`` of its file, or ``args.alpha`` of a function that has made the
class. A captured graph has them as constants; so they are compared before each call, as attributes
of modules are.
"""

from pyrannc.capture.attributes.around import ABSENT
from pyrannc.running.guards.comparable import comparables


class Around:
    """Reads ``places``, and of objects there what is ``wanted``."""

    def __init__(self, places, wanted):
        self._wanted = wanted
        self._places = [place for place in places if next(self._values(place, set()), None)]

    def leave_out(self, paths) -> None:
        """Places that forward() changes."""
        self._places = [place for place in self._places if place.path not in paths]

    def now(self):
        """Pairs of path and value."""
        seen = set()
        for place in self._places:
            yield from self._values(place, seen)

    def _values(self, place, seen):
        value = place.read()
        return iter(()) if value is ABSENT else comparables(place.path, value, self._wanted, seen)
