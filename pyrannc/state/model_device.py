"""Where a model computes: on the accelerator that its tensors are on, else on the host."""

import torch

from pyrannc.errors import ConfigError
from pyrannc.state import named_tensors


def device_of(model, inputs=()) -> torch.device:
    """The device on which ``model`` runs, with its index: the one accelerator that some of its
    parameters, buffers or ``inputs`` are on, else the host. Tensors of the host may be beside it,
    as the model itself may keep some there.

    Raises:
        ConfigError: The tensors are on two accelerators; names one on each.
    """
    found = {}
    for name, tensor in [*named_tensors.tensors(model).items(), *_named(inputs)]:
        device = tensor.device
        if device.type not in ("cpu", "meta"):
            found.setdefault(device, name)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise ConfigError(
            f"'{first}' is on {one} and '{second}' on {other}: a rank computes on one device."
            "\n  Move the model and its inputs to one device, or leave both on the CPU."
        )
    return next(iter(found), torch.device("cpu"))


def _named(inputs):
    return [(f"input {number}", tensor) for number, tensor in enumerate(inputs)]
