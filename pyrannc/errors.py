"""The errors that a user can cause and mend; all are ``RaNNCError``."""

from pyrannc import _C

RaNNCError = _C.util.RaNNCError
ConfigError = _C.util.ConfigError
TraceError = _C.util.TraceError
PlanError = _C.util.PlanError
InfeasibleError = _C.util.InfeasibleError
CommError = _C.util.CommError
for _error in (RaNNCError, ConfigError, TraceError, PlanError, InfeasibleError, CommError):
    _error.__module__ = "pyrannc"  # where users find it, and so in tracebacks

#: tuned by: names of settings, and what people write for them.
#: without it: a word that is like none gets a guess that misleads.
_MOST_LETTERS = 2


def meant(word, known) -> str:
    """ "; did you mean 'it'?" for what is at most two letters away from ``word``, else nothing."""
    close = _C.util.closest(word, [*known], _MOST_LETTERS)
    return f"; did you mean '{close}'?" if close else ""


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
