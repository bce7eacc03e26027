"""torch.is_grad_enabled(), which forward() may ask: captures are made with gradients, whatever the
mode of their calls."""

import contextlib
import inspect
import threading

import torch

from pyrannc.capture.attributes.around import places_around
from pyrannc.capture.attributes.user_code import is_of_users_file
from pyrannc.capture.replaced import replaced


class GradMode:
    """The mode of a call, for those who ask while it is captured.

    Attributes:
        told: What they were told; None where nobody has asked.
    """

    def __init__(self, grad: bool):
        self._grad, self.told = grad, None

    @contextlib.contextmanager
    def answered(self, model):
        """Code of the user's that runs in this thread is told the mode of the call, but inside of a
        ``torch.no_grad()`` of its own. Libraries get torch's answer: they choose kernels by it,
        which compute the same, and each would need a capture of its own."""
        torchs, thread = torch.is_grad_enabled, threading.get_ident()
        imported = [each for each in places_around(model) if each.read() is torchs]

        def is_grad_enabled(*_):  # in a class it would be a method
            now = torchs()
            asking = inspect.currentframe().f_back.f_globals.get("__name__", "")
            if not now or threading.get_ident() != thread or not is_of_users_file(asking):
                return now
            self.told = self._grad
            return self._grad

        with replaced(torch, is_grad_enabled=is_grad_enabled), contextlib.ExitStack() as stack:
            for each in imported:
                stack.callback(each.write, torchs)
                each.write(is_grad_enabled)
            yield
