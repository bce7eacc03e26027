"""Where the random numbers that do not depend on the plan begin, and go on after a checkpoint."""

import weakref

import torch

from pyrannc import _C
from pyrannc.ranks import of_rank

# By model: seed and step of a checkpoint that was loaded before the first call.
_loaded = weakref.WeakKeyDictionary()


def begin(world, model):
    """``_C.runtime.DrawSteps`` from where a loaded checkpoint was, or else from rank 0's seed and
    step 0. Collective."""
    seed, step = _loaded.pop(model, (torch.initial_seed(), 0))
    seed, step = of_rank(0, world, (int(seed), int(step)))
    draws = _C.runtime.DrawSteps(seed % 2**64)
    draws.step = step
    return draws


def now(model, deployment) -> list | None:
    """Seed and step; None where there are no such draws."""
    if deployment is None:
        return list(_loaded[model]) if model in _loaded else None
    draws = deployment.draws
    return None if draws is None else [draws.seed, draws.step]


def restore(model, deployment, seed: int, step: int) -> None:
    """Goes on from there, in the next call."""
    if deployment is None:
        _loaded[model] = seed, step
    elif deployment.draws is not None:
        deployment.draws.seed, deployment.draws.step = seed, step
