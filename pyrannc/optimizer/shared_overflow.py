"""Ranks skip an optimizer's step together, also with torch's own gradient scaler.

A rank holds the gradients of its own stages only. Where one of them is infinite or not a number on
any rank, no rank may take the step, and the scale has to shrink on all of them.
"""

import numpy as np
import torch

from pyrannc import live_deployments
from pyrannc.optimizer.step import masters
from pyrannc.optimizer.step.hidden_gradients import HiddenGradients
from pyrannc.optimizer.step.step import lent_by


def unscale(torchs, scaler, optimizer, inv_scale, found_inf, allow_fp16):
    """What :class:`torch.amp.GradScaler` does before a step, over all ranks for the optimizer of a
    wrapped model."""
    masters.lengthen_gradients(optimizer)
    with lent_by(HiddenGradients(), optimizer):
        found = torchs(scaler, optimizer, inv_scale, found_inf, allow_fp16)
    worlds = {each.world for each in live_deployments.of_optimizer(optimizer)}
    for world in (each for each in worlds if each.size > 1):
        count = np.array([sum(bool(flag.item()) for flag in found.values())], dtype=np.int64)
        world.all_reduce_sum(count, list(range(world.size)))
        # Also on a rank without a gradient, of which torch would say that nothing was checked.
        # On the host, where torch reads it next, without waiting for a device once more.
        found = {torch.device("cpu"): torch.full((), float(count[0] > 0), dtype=torch.float32)}
    return found
