"""A gradient scaler that all ranks of a job share."""

import numpy as np
import torch

from pyrannc import launch


class GradScaler(torch.amp.GradScaler):
    """torch's gradient scaler, whose ranks skip a step together.

    A rank holds the gradients of its own stages only. Where one of them is infinite or not a number
    on any rank, no rank takes the step, and the scale shrinks on all of them. Every rank calls
    ``step()``, and ``unscale_()`` if any does; a rank without parameters of its own, too.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = pyrannc.RaNNCModule(model, optimizer)
    >>> scaler = GradScaler("cpu")
    >>> with torch.autocast("cpu", torch.float16):
    ...     loss = model(torch.ones(8, 4)).mean()
    >>> _ = scaler.scale(loss).backward()
    >>> _ = scaler.step(optimizer)
    >>> scaler.update()
    """

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        world = launch.world()
        count = np.array([sum(bool(flag.item()) for flag in found.values())], dtype=np.int64)
        world.all_reduce_sum(count, list(range(world.size)))
        return {inv_scale.device: torch.full_like(found_inf, float(count[0] > 0))}
