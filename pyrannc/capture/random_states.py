"""Random numbers of Python, numpy and torch: a capture neither uses them up nor repeats them."""

import contextlib
import random
import sys

import torch

from pyrannc import _C
from pyrannc.errors import TraceError

HOST = torch.device("cpu")


@contextlib.contextmanager
def kept(device=None):
    """The states afterwards are those before; among torch's the host's and that of ``device``, the
    current one of an accelerator that is in use."""
    device = device or _in_use()
    numpy = _numpy_random()
    python_state, numpy_state = random.getstate(), numpy and numpy.get_state()
    states = of_torch(device)
    try:
        yield
    finally:
        put(states, device)
        random.setstate(python_state)
        if numpy:
            numpy.set_state(numpy_state)


def _in_use() -> torch.device:
    if not torch.accelerator.is_available():
        return HOST
    kind = torch.accelerator.current_accelerator().type
    if not getattr(torch.get_device_module(kind), "is_initialized", lambda: True)():
        return HOST
    return torch.device(kind, torch.accelerator.current_device_index())


def of_torch(device=HOST) -> list[torch.Tensor]:
    """The states of torch's generators of the host and of ``device``, as :func:`put` takes them;
    a backend need not have one."""
    states = [torch.get_rng_state()]
    if device.type != "cpu" and (state := _C.runtime.random_state(str(device))) is not None:
        states.append(state)
    return states


def put(states, device=HOST) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        _C.runtime.set_random_state(str(device), state)


def are_equal(some, others) -> bool:
    return all(map(torch.equal, some, others))


def seed(number: int, device=HOST) -> None:
    """As ``torch.manual_seed()``, which would begin to use all devices of the machine."""
    torch.default_generator.manual_seed(number)
    if device.type != "cpu":
        _C.runtime.seed_generator(str(device), number % (1 << 64))


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
