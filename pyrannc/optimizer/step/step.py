"""One step of an optimizer, from the first participant's beginning to its end."""

import contextlib

from pyrannc import live_deployments
from pyrannc.optimizer.step.participant import Lender


class Step:
    """The step at hand.

    Attributes:
        optimizer: Whose step it is.
        is_tried: RaNNC steps it, on copies of parameters.
        held: The parameters of its groups.
        deployments: Those that the optimizer belongs to; none where it is tried.
    """

    def __init__(self, optimizer, participants):
        self.optimizer, self._participants = optimizer, participants
        self.is_tried = getattr(optimizer, "is_tried", False)
        self._begun = []  # (participant, what it has begun), the outer one first
        self._look()

    def _look(self):
        self.held = [each for group in self.optimizer.param_groups for each in group["params"]]
        self.deployments = []
        if not self.is_tried:
            self.deployments = live_deployments.of_optimizer(self.optimizer, self.held)

    def run(self, code, args, kwargs):
        """``code(optimizer, *args, **kwargs)``, as the class has written it."""
        if args and args[0] is not None:
            args = (self._outside(args[0]), *args[1:])
        elif kwargs.get("closure") is not None:
            kwargs = {**kwargs, "closure": self._outside(kwargs["closure"])}
        try:
            for each in self._participants:
                if (begun := each.before(self)) is not None:
                    self._begun.append((each, begun))
            result = code(self.optimizer, *args, **kwargs)
            while self._begun:
                participant, begun = self._begun.pop()
                participant.after(self, begun)
        except BaseException:  # Ctrl-C included: what was begun ends
            self._fail()
            raise
        return result

    def _fail(self):
        if self._begun:
            participant, begun = self._begun.pop()
            try:
                participant.failed(self, begun)
            finally:
                self._fail()

    def _outside(self, closure):
        """A closure that runs ``closure`` on the user's own tensors. The model may have its first
        call there, so all that can be lent is looked for again."""

        def call(*args, **kwargs):
            lenders = [each for each in self._participants if isinstance(each, Lender)]
            lent = [entry for entry in self._begun if entry[0] in lenders]
            self._begun = [entry for entry in self._begun if entry[0] not in lenders]
            for participant, begun in reversed(lent):
                participant.take_back(self, begun)
            try:
                return closure(*args, **kwargs)
            finally:
                self._look()
                for each in lenders:
                    if (begun := each.before(self)) is not None:
                        self._begun.append((each, begun))

        return call


@contextlib.contextmanager
def lent_by(lender, optimizer):
    """Inside, what one lender lends for a step of ``optimizer``, without a step."""
    step = Step(optimizer, ())
    lent = lender.before(step)
    try:
        yield
    finally:
        if lent is not None:
            lender.take_back(step, lent)
