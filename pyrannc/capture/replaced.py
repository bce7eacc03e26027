"""Attributes of torch's classes and modules, replaced for a while."""

import contextlib


@contextlib.contextmanager
def replaced(owner, **attributes):
    """Attributes of a class or module, replaced inside."""
    absent = object()
    before = {name: vars(owner).get(name, absent) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
