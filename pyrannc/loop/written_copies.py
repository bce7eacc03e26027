"""What ``state_dict()`` has given, where it holds copies: writing into them changes no model.

Of a module of torch it holds the model's own tensors, and averages of timm and others write there.
"""

import weakref

import torch

from pyrannc.errors import RaNNCError


class GivenCopies:
    """Those that one model has given, as long as somebody keeps them."""

    def __init__(self):
        self._given = []  # name, reference, version

    def add(self, state) -> None:
        """``state``: what the model's state_dict() returns, without what an outer module has."""
        self._given += [
            (name, weakref.ref(value), value._version)
            for name, value in state.items()
            if isinstance(value, torch.Tensor) and not value.is_inference()
        ]

    def forget(self) -> None:
        """As values have been loaded since."""
        self._given.clear()

    def refuse_written(self) -> None:
        """
        Raises:
            RaNNCError: Somebody has written into one, and not loaded it.
        """
        if not self._given:
            return
        kept = []
        for entry in self._given:
            name, reference, version = entry
            if (tensor := reference()) is None:
                continue
            if tensor._version != version:
                self._given.clear()  # said once
                raise RaNNCError(
                    f"'{name}' of what state_dict() has returned was written to, but after the "
                    "first call that is a copy: the model has not changed.\n  Hand it to "
                    "load_state_dict(), which every rank calls; or change parameters: "
                    "`for a, b in zip(average.parameters(), model.parameters())` works on all "
                    "ranks, `zip(average.state_dict().values(), ...)` does not. clone() what you "
                    "want to change for yourself."
                )
            kept.append(entry)
        self._given = kept
