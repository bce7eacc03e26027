"""Whether the ranks that hold what this one has released have gradients of it.

Where they have, ``parameter.grad`` of a released parameter is released, too: ``p.grad.clamp_(...)``
does nothing here, as its rank does it, and ``p.grad.norm()``, which would be left out of a sum over
all parameters, is an error.
"""

import contextlib

_hidden = [0]


class GradientsElsewhere:
    """Of one model on one rank.

    Attributes:
        used: Names of parameters that some capture uses.
        arrivals: Backward passes that have given gradients.
        cleared: How many of them there were at the module's last ``zero_grad()``.
    """

    def __init__(self):
        self.used, self.arrivals, self.cleared = set(), 0, 0

    def there_are(self, name, cleared) -> bool:
        """``cleared``: how many there were when the parameter's own was last set to None."""
        return not _hidden[0] and name in self.used and self.arrivals > max(cleared, self.cleared)


def begin_optimizer_step() -> None:
    """From here on a released parameter has no gradient, so that optimizers leave it out."""
    _hidden[0] = 1


def end_optimizer_step() -> None:
    _hidden[0] = 0


@contextlib.contextmanager
def hidden():
    """Inside, the same."""
    before, _hidden[0] = _hidden[0], 1
    try:
        yield
    finally:
        _hidden[0] = before
