"""Steps of an optimizer whose model has not been called yet: each rank would train by itself."""

import weakref

from pyrannc.errors import RaNNCError
from pyrannc.optimizer.step.participant import Participant

_was_called = weakref.WeakKeyDictionary()  # by optimizer: a function


def refuse(was_called, optimizers) -> None:
    """Makes a step of ``optimizers``, which were given with a model, an error where they have
    gradients, until ``was_called()``. The call may be in their closure."""
    for optimizer in optimizers:
        _was_called[optimizer] = was_called


class Early(Participant):
    def before(self, step):
        return _was_called.get(step.optimizer)

    def after(self, step, begun):
        if begun():
            _was_called.pop(step.optimizer, None)
            return
        # Of zeros, as torch.distributed.checkpoint makes an optimizer's state, none is of rows.
        if any(each.grad is not None and each.grad.any() for each in step.held):
            raise RaNNCError(
                f"{type(step.optimizer).__name__} has stepped before the first call of the "
                "RaNNCModule, with gradients of this rank's rows alone: each rank would train a "
                "model of its own.\n  Call the wrapped model itself, which runs its forward(), for "
                "each loss. Other methods of it (model.encode(x), model.module(x)) are this rank's "
                "alone: let forward() call them."
            )
