"""Random numbers of Python, numpy and torch: a capture neither uses them up nor repeats them."""

import contextlib
import random
import sys

import torch

from pyrannc.errors import TraceError


@contextlib.contextmanager
def kept():
    """The states afterwards are those before."""
    numpy = _numpy_random()
    python_state, numpy_state = random.getstate(), numpy and numpy.get_state()
    try:
        with torch.random.fork_rng(devices=[] if not torch.cuda.is_initialized() else None):
            yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.set_state(numpy_state)


@contextlib.contextmanager
def refused_outside_torch():
    """Raises TraceError where Python's or numpy's random numbers were drawn inside: what was made
    of them is a constant of the graph, in every step the same."""
    before = _states()
    yield
    for module, state in _states().items():
        if before.get(module, state) != state:
            raise TraceError(
                f"forward() draws random numbers from Python's module '{module}', which a captured "
                "graph cannot repeat: it would keep those of its capture.\n  Draw them with torch, "
                "and choose by torch.where; or draw outside and pass what was drawn as an argument "
                "of forward(). For models of transformers set layerdrop and mask_time_prob to 0."
            )


def _states():
    numpy = _numpy_random()
    states = {"random": random.getstate()}
    if numpy:
        kind, keys, *rest = numpy.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *rest)
    return states


def _numpy_random():
    """numpy's global generator, where numpy is in use."""
    return sys.modules["numpy"].random if "numpy" in sys.modules else None
