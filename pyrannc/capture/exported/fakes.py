"""The FakeTensors in which torch.export runs a model: its own of the call's tensors, and ours of
parameters and buffers, which need no values and are on the device that the model moves to.
"""

import contextlib
import threading

from torch import nn

from pyrannc.capture import torch_private
from pyrannc.capture.fake_mode import FakeMode, fake_like
from pyrannc.capture.replaced import replaced


@contextlib.contextmanager
def used(states, places, symbols):
    """torch.export, called inside, takes them. Gives a list that will hold its FakeTensorMode.

    Args:
        states: ``(names, tensor, kind)`` of parameters and buffers.
        places: :class:`~pyrannc.state.model_device.Places`, or None.
        symbols: Sizes that depend on values are symbols; else what has one raises an error.
    """
    tensors, modes = {id(tensor): tensor for _, tensor, _ in states}, []
    thread, exporting = threading.get_ident(), torch_private.exporting()
    for_others = exporting.FakeTensorMode

    class Fakes(FakeMode):
        def __new__(cls, *args, **kwargs):
            if threading.get_ident() != thread:  # not one of these, so __init__ is not called
                return for_others(*args, **kwargs)
            return super().__new__(cls)

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            if not symbols:
                torch_private.forbid_sizes_of_values(self.shape_env)
            self._made = {}
            modes.append(self)

        def from_tensor(self, tensor, *args, **kwargs):
            if tensors.get(id(tensor)) is not tensor:
                return super().from_tensor(tensor, *args, **kwargs)
            if id(tensor) not in self._made:
                with self:
                    self._made[id(tensor)] = like(tensor, places)
            return self._made[id(tensor)]

    try:
        with replaced(exporting, FakeTensorMode=Fakes):
            yield modes
    finally:
        # torch keeps the nodes of its last export, and with them this mode.
        tensors.clear()


def like(tensor, places):
    """``fake_like``, and a parameter where torch.export asks for one."""
    made = fake_like(tensor, places)
    return nn.Parameter(made, made.requires_grad) if isinstance(tensor, nn.Parameter) else made
