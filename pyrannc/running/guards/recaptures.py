"""A warning about a model that is captured anew again and again."""

import collections

#: Captures because of attributes, or of arguments that are no tensors, among the last calls, until
#: a warning says so.
#: tuned by: when a warning comes; nothing is decided by it.
#: without it: whoever counts steps in an attribute of the model would not learn why each is slow.
OFTEN = 4
CALLS = 20
#: Captures for lengths alone, after the first one, until a line recommends pad_to.
#: tuned by: when a line comes; nothing is decided by it.
#: without it: who trains on sentences of any length would not learn why steps are slow.
LENGTHS = 3


class Recaptures:
    """The last calls, and which of them were captured anew."""

    def __init__(self):
        self._last = collections.deque(maxlen=CALLS)
        self._has_told = False
        self._lengths = 0  # captures for lengths alone

    def add_length(self, arguments) -> str:
        """Notes a capture for lengths of ``arguments`` alone, and returns the advice, once."""
        self._lengths += 1
        if self._lengths != LENGTHS:
            return ""
        pad = ", ".join(f"{name!r}: 0" for name in arguments)
        return (
            f"the model was captured {LENGTHS} times more for lengths alone, which takes time for "
            f"each that is new. RaNNCModule(..., pad={{{pad}}}, pad_to=64) pads to multiples of "
            "64, of which there are few; name the number that each argument is padded with, such "
            "as -100 for labels"
        )

    def add(self, reason="") -> str:
        """Notes a call. ``reason``: why it was captured anew, where that is worth a warning.

        Returns:
            The warning, once.
        """
        self._last.append(bool(reason))
        if not reason or self._has_told or sum(self._last) < OFTEN:
            return ""
        self._has_told = True
        many = f"{OFTEN} of the last {len(self._last)} calls were captured anew"
        if all([*self._last][-OFTEN:]):
            many = f"each of the last {OFTEN} calls was captured anew"
        return (
            f"{many}, because {reason}. Pass what changes as a tensor, or keep it outside of the "
            "model and its arguments."
        )
