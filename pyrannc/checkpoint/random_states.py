"""Random generators of a rank, and the draws of deterministic dropout, in a checkpoint."""

import base64
import random

import numpy
import torch

from pyrannc import _C, log
from pyrannc.state import draw_steps


def of_rank(device: torch.device) -> dict:
    """The states of torch's, Python's and numpy's generators, in JSON's types."""
    version, numbers, gauss = random.getstate()
    kind, keys, *rest = numpy.random.get_state()
    found = {
        "torch": _text(torch.get_rng_state()),
        "python": [version, list(numbers), gauss],
        "numpy": [kind, keys.tolist(), *rest],
    }
    if device.type not in ("cpu", "meta"):
        state = _C.runtime.random_state(str(device))
        if state is not None:  # not every backend has a generator
            found[device.type] = _text(state)
    return found


def set_rank(states: dict, device: torch.device) -> None:
    torch.set_rng_state(_bytes(states["torch"]))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = states["numpy"]
    numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if device.type in states and _C.runtime.backend_of(str(device)).generator:
        _C.runtime.set_random_state(str(device), _bytes(states[device.type]))


def restore(saved: dict, world, model, deployment, device) -> None:
    """Generators of this rank, and the draws of the model, as they were saved.

    A rank that was not there keeps its generators: what it draws is as in a new job.
    """
    states = saved["ranks"]
    if world.rank < len(states):
        set_rank(states[world.rank], device)
    elif world.rank == len(states):
        log.info(
            "checkpoint",
            f"saved on {len(states)} ranks, loaded on {world.size}: the others keep their random "
            "generators; Config(deterministic_dropout=True) makes draws independent of ranks",
        )
    if saved["draws"] is not None:
        draw_steps.restore(model, deployment, *saved["draws"])


def of_model(model, deployment) -> list | None:
    """Seed and step of the draws that do not depend on the plan; None where there are none."""
    return draw_steps.now(model, deployment)


def _text(tensor):
    return base64.b64encode(tensor.cpu().numpy().tobytes()).decode()


def _bytes(text):
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
