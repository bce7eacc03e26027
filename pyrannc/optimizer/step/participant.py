"""The interface of what takes part in the steps of optimizers."""


class Participant:
    """Takes part in each step of each optimizer of the process; one object for all of them.

    Where ``before()`` has returned something, either ``after()`` or ``failed()`` gets it.
    """

    def before(self, step):
        """Begins something, and returns what its end needs; None where there is nothing to end.

        Args:
            step: :class:`~pyrannc.optimizer.step.step.Step`.
        """

    def after(self, step, begun) -> None:
        """Ends it once the code of the step has returned."""

    def failed(self, step, begun) -> None:
        """Ends it where that code, or another participant, has raised."""


class Lender(Participant):
    """Gives the step other tensors or gradients than the user knows.

    The closure of a step is the user's code: it runs after ``take_back()``, and then ``before()``
    lends anew.
    """

    def lend(self, step, lent: list) -> None:
        """Appends to ``lent`` what ``take_back()`` needs, one after the other."""
        raise NotImplementedError

    def take_back(self, step, lent: list) -> None:
        """Everything is as it was before ``lend()``, with what the step has computed."""
        raise NotImplementedError

    def before(self, step):
        lent = []
        try:
            self.lend(step, lent)
        except BaseException:  # whatever has failed, Ctrl-C included: what was lent comes back
            self.take_back(step, lent)
            raise
        return lent or None

    def after(self, step, begun):
        self.take_back(step, begun)

    def failed(self, step, begun):
        self.take_back(step, begun)
