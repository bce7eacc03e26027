"""``from_global`` of an optimizer's ``state_dict()`` and ``load_state_dict()``, of RaNNC 0.7."""

import functools
import weakref

from pyrannc.errors import RaNNCError

LINE = (
    "from_global=True: the state of an optimizer of all ranks is not there yet; save each rank's "
    "state_dict(), and load it under the same plan"
)


def answer(optimizer) -> None:
    """Lets both methods of ``optimizer`` take ``from_global``: an error where it is True."""
    for name in ("state_dict", "load_state_dict"):
        if name not in vars(optimizer):  # else somebody has replaced it, or it answers already
            setattr(optimizer, name, _answering(weakref.ref(optimizer), name))


def _answering(optimizer, name):
    """``optimizer``: a weak reference, as a method of an object must not keep it."""

    @functools.wraps(getattr(type(optimizer()), name))
    def method(*args, from_global=False, **kwargs):
        if from_global:
            raise RaNNCError(f"optimizer.{name}({LINE})")
        return getattr(type(optimizer()), name)(optimizer(), *args, **kwargs)

    return method
