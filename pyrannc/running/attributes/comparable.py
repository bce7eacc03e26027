"""Numbers, flags and strings, which can be compared, and lists of a few of them."""

#: Elements of a list that is compared.
#: tuned by: a safety margin: lists of settings have a few elements.
#: without it: a list with an entry for each class or token would be gone through in every call.
_MOST_ELEMENTS = 16
_PLAIN = bool | int | float | str | None
NOTHING = object()


def comparable(value):
    """``value`` as it is compared, or ``NOTHING``."""
    if isinstance(value, _PLAIN):
        return value
    if not isinstance(value, list | tuple) or len(value) > _MOST_ELEMENTS:
        return NOTHING
    return tuple(value) if all(isinstance(each, _PLAIN) for each in value) else NOTHING
