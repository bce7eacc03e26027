"""Steps of an optimizer whose model has not been called yet: each rank would train by itself."""

import contextlib

from pyrannc import launch
from pyrannc.errors import RaNNCError


def refuse(was_called, given) -> None:
    """Makes a step of the optimizers that were ``given`` with a model an error, where they have
    gradients and there are other ranks, until ``was_called()``. The call may be in their closure.
    """

    def after(stepped, *_):
        if was_called():
            return
        parameters = (each for group in stepped.param_groups for each in group["params"])
        # Of zeros, as torch.distributed.checkpoint makes an optimizer's state, none is of rows.
        if any(each.grad is not None and each.grad.any() for each in parameters):
            raise RaNNCError(
                f"{type(stepped).__name__} has stepped before the first call of the RaNNCModule, "
                "with gradients of this rank's rows alone: each rank would train a model of its "
                "own.\n  Call the wrapped model itself, which runs its forward(), for each loss. "
                "Other methods of it (model.encode(x), model.module(x)) are this rank's alone: let "
                "forward() call them."
            )

    for optimizer in given.optimizers if launch.get_world_size() > 1 else ():
        with contextlib.suppress(AttributeError):  # one around another may know of no hooks
            optimizer.register_step_post_hook(after)
