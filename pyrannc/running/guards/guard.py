"""One guard: a thing that a later call has to share with the captured one."""

import operator


class Guard:
    """A thing that a captured graph depends on, and that Python may change between calls.

    Attributes:
        name: For users, such as "arguments"; empty where no warning names the guard.
    """

    name = ""

    def now(self, call):
        """The value in this call."""
        raise NotImplementedError

    def captured(self, capture, now):
        """The value that belongs to ``capture``; ``now``: the value in the captured call."""
        return now

    same = staticmethod(operator.eq)  # of the value of a capture and of a call

    def difference(self, then, now) -> str:
        """The change, in words; empty where there is none worth a word."""
        return ""


class FixedGuard:
    """A thing that no call after the first can change, as the plan depends on it."""

    def refuse_changed(self) -> None:
        """Raises RaNNCError that names the change."""
        raise NotImplementedError
