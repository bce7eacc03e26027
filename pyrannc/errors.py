"""The errors that a user can cause and mend; all are ``RaNNCError``."""

from pyrannc import _C

RaNNCError = _C.util.RaNNCError
ConfigError = _C.util.ConfigError
TraceError = _C.util.TraceError
PlanError = _C.util.PlanError
InfeasibleError = _C.util.InfeasibleError
CommError = _C.util.CommError


def meant(word, known) -> str:
    """ "; did you mean 'it'?" for what is at most two letters away from ``word``, else nothing."""
    close = _C.util.closest(word, [*known])
    return f"; did you mean '{close}'?" if _letters_between(word, close) <= 2 else ""


def _letters_between(one, other) -> int:
    """Letters to put in, leave out or replace (Levenshtein)."""
    row = [*range(len(other) + 1)]
    for i, letter in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, against in enumerate(other, 1):
            replaced = diagonal + (letter != against)
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, replaced)
    return row[-1]


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
