"""A warning about a model that is captured anew again and again."""

import collections

#: Captures because of attributes, or of arguments that are no tensors, among the last calls, until
#: a warning says so.
#: tuned by: when a warning comes; nothing is decided by it.
#: without it: whoever counts steps in an attribute of the model would not learn why each is slow.
OFTEN = 4
CALLS = 20


class Recaptures:
    """The last calls, and which of them were captured anew."""

    def __init__(self):
        self._last = collections.deque(maxlen=CALLS)
        self._has_told = False

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
