"""The guard of the arguments of a call."""

from pyrannc.running.guards.guard import Guard


class Arguments(Guard):
    """The places, shapes and dtypes of tensors, and all else among the arguments."""

    name = "arguments"

    def now(self, call):
        """The call, and which of its tensors may have other lengths."""
        return call, ()

    def captured(self, capture, now):
        return capture

    @staticmethod
    def same(then, now):
        return then.difference(*now) is None

    def difference(self, then, now):
        """Also of shapes, which alone are no reason for a warning."""
        return then.difference(*now) or ""

    @staticmethod
    def beside_tensors(then, now) -> str:
        return then.difference_beside_tensors(now[0])
