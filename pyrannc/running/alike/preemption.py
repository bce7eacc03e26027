"""A host that is about to be taken away, as a spot virtual machine or at the end of its time."""

from pyrannc import log
from pyrannc.job import process

SIGNALS = ("SIGTERM", "SIGUSR1")


class Preemption:
    """What one process knows of it, and what is done then.

    Attributes:
        has_come: This process has got a signal, of which the others do not know yet.
        is_due: All ranks know, and no step has ended since.
    """

    def __init__(self, callback):
        self.callback = callback
        self.has_come = self.is_due = False


def on_preemption(callback) -> None:
    """Has every rank call ``callback()`` at the same end of a step, soon after one of them has got
    SIGTERM or SIGUSR1, which end nothing from now on. Every rank calls this, in its main thread.

    The rank says so in the message by which ranks agree on their next call of the model, so nothing
    more is sent; ``callback()`` is called in the first call of the model after a step of an
    optimizer, before anything of it is computed. It may save, which is collective, and end the
    process; where it returns, training goes on.

    Example::

        def leave():
            pyrannc.save("checkpoint", model, optimizer, extra={"step": step})
            sys.exit(75)  # `rannc run --max-restarts 3 --min-hosts 1` goes on

        pyrannc.on_preemption(leave)
    """
    found = Preemption(callback)

    def note():
        found.has_come = True

    process.when_signalled(SIGNALS, note)
    process.set_preemption(found)


class Boundaries:
    """Of the steps of one deployment: where :func:`on_preemption`'s callback may be called.

    Args:
        steps: :class:`~pyrannc.optimizer.step.count.OptimizerSteps`.
    """

    def __init__(self, steps):
        self._steps, self._taken = steps, 0

    @staticmethod
    def take() -> bool:
        """Whether this rank has to tell the others now."""
        known = process.preemption()
        has_come = known is not None and known.has_come
        if has_come:
            known.has_come = False
        return has_come

    def heard(self, is_told: bool, grad: bool) -> None:
        """After ranks have agreed on a call: ``is_told`` if one of them has been signalled."""
        known = process.preemption()
        if is_told and known is None:
            log.warn(
                "run", "another rank calls a function of pyrannc.on_preemption(); here is none"
            )
        elif is_told:
            known.is_due = True
        is_first = self._steps.taken != self._taken
        if grad:
            self._taken = self._steps.taken
        if known is not None and known.is_due and is_first:
            known.is_due = False
            known.callback()
