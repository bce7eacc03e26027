"""Temporary replacements of attributes of torch's classes and modules.

A replacement is seen by every thread of the process. Each one asks which thread calls it, and gives
all threads but the capturing one torch's own answer.
"""

import contextlib
import threading


@contextlib.contextmanager
def replaced(owner, **attributes):
    """Replaces attributes of a class or module inside of the block.

    An attribute that somebody else sets inside of the block keeps the value that it was set to.
    """
    absent = object()
    before = {name: vars(owner).get(name, absent) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if vars(owner).get(name, absent) is not attributes[name]:
                continue
            if value is absent:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def in_this_thread(function, original):
    """A function that is ``function`` in the thread that makes it, and ``original`` in others."""
    thread = threading.get_ident()

    def choose(*args, **kwargs):
        chosen = function if threading.get_ident() == thread else original
        return chosen(*args, **kwargs)

    return choose
