"""The errors that a user can cause and mend; all are ``RaNNCError``."""

from pyrannc import _C

RaNNCError = _C.util.RaNNCError
ConfigError = _C.util.ConfigError
TraceError = _C.util.TraceError
PlanError = _C.util.PlanError
InfeasibleError = _C.util.InfeasibleError
CommError = _C.util.CommError


def shown_as(kind):
    """A class of errors that users see, and other ranks raise, under the name of ``kind``."""

    def shown(cls):
        cls.__name__, cls.__qualname__, cls.__module__ = (
            kind.__name__,
            kind.__name__,
            kind.__module__,
        )
        return cls

    return shown
