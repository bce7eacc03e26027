"""Whether the ranks that hold what this one has released have gradients of it.

Where they have, ``parameter.grad`` of a released parameter is released, too: ``p.grad.clamp_(...)``
does nothing here, as its rank does it, and ``p.grad.norm()``, which would be left out of a sum over
all parameters, is an error.
"""

import threading


class GradientsElsewhere:
    """Of one model on one rank.

    Attributes:
        used: Names of parameters that some capture uses.
        arrivals: Backward passes that have given gradients.
        cleared: How many of them there were at the module's last ``zero_grad()``.
    """

    def __init__(self):
        self.used, self.arrivals, self.cleared = set(), 0, 0
        self._hidden_in = []  # threads between hide() and show(), once for each time

    def there_are(self, name, cleared) -> bool:
        """``cleared``: how many there were when the parameter's own was last set to None."""
        if self._hidden_in and threading.get_ident() in self._hidden_in:
            return False
        return name in self.used and self.arrivals > max(cleared, self.cleared)

    def hide(self) -> None:
        """From here on this thread sees no gradient of a released parameter, so that an optimizer
        skips the parameter; as often as it is called until as many show()."""
        self._hidden_in.append(threading.get_ident())

    def show(self) -> None:
        self._hidden_in.remove(threading.get_ident())
