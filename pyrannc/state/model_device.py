"""Where a rank computes with a model.

On the accelerator that the model is on; where it is on the host, on that of its first inputs or of
``Config(device=...)``; else on the host.
"""

import dataclasses
import os

import torch

from pyrannc.errors import ConfigError
from pyrannc.state import named_tensors

#: Where what a rank sees of accelerators is chosen.
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}


@dataclasses.dataclass(frozen=True)
class Places:
    """Of one rank.

    Attributes:
        device: Where it computes, with its index.
        home: Where the model was when it was first called. Where it is another one, the model is
            planned for there, and each rank moves its own part to ``device``.
    """

    device: torch.device
    home: torch.device

    @property
    def moves(self) -> bool:
        return self.device != self.home


def places_of(model, inputs, wanted: str, local_rank: int) -> Places:
    """Where this rank computes.

    Args:
        model: The user's. Buffers may be on the host beside parameters on an accelerator, as a
            model itself may keep some there.
        inputs: Tensors of the call, by their paths in it.
        wanted: ``Config.device``: "cuda", "cuda:1", "cpu", or empty.
        local_rank: How many ranks of this host come before this one.

    Raises:
        ConfigError: Parameters are on two devices, or on another one than is wanted, or inputs are
            on two accelerators; names a tensor on each. There is no such device.
    """
    wanted = _parsed(wanted)
    home = _home(model)
    if home.type != "cpu":
        if wanted and (wanted.type != home.type or wanted.index not in (None, home.index)):
            name = next(name for name, p in model.named_parameters() if p.device == home)
            raise ConfigError(
                f"Config(device='{wanted}'), but '{name}' of the model is on {home}.\n  Move the "
                "model there, or leave it on the CPU, from where each rank moves its own part."
            )
        return Places(home, home)
    of_inputs = _one({path: tensor.device for path, tensor in inputs.items()})
    if wanted is None:
        return Places(of_inputs or home, home)
    if wanted.type == "cpu":
        return Places(home, home)
    if wanted.index is None:
        if of_inputs and of_inputs.type == wanted.type:
            return Places(of_inputs, home)
        return Places(torch.device(wanted.type, _chosen(wanted.type, local_rank)), home)
    count = _count(wanted.type)
    if wanted.index >= count:
        raise ConfigError(f"Config(device='{wanted}'): this rank sees {_seen(wanted.type, count)}")
    return Places(wanted, home)


def device_of(model) -> torch.device:
    """Where a model is: the one device of its parameters.

    Raises:
        ConfigError: They are on two devices; names one on each.
    """
    return _home(model)


def check_state(model, optimizers) -> None:
    """Raises ConfigError where an optimizer keeps something of a parameter, as large as that, on
    another device than the parameter is on."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if not isinstance(parameter, torch.Tensor):  # the name of what is of no parameter
                continue
            for name, value in state.items():
                if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
                    continue
                if value.device == parameter.device or not value.dim():
                    continue
                raise ConfigError(
                    f"'{name}' that {type(optimizer).__name__} keeps of "
                    f"'{names.get(id(parameter), 'a parameter')}' is on {value.device}, but the "
                    f"parameter is on {parameter.device}.\n  optimizer.load_state_dict() moves "
                    "what it loads to the parameters."
                )


def _parsed(wanted: str) -> torch.device | None:
    if not wanted:
        return None
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"Config(device={wanted!r}): {str(error).splitlines()[0]}") from None
    if device.type == "meta":
        raise ConfigError("Config(device='meta'): nothing can be computed there")
    return device


def _home(model) -> torch.device:
    """The one device of the parameters, else of the buffers."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta":
            found.setdefault(parameter.device, name)
    if len(found) > 1:
        raise ConfigError(
            f"{_two(found)}: a rank computes on one device.\n  Move the whole model there, or "
            "leave it on the CPU, from where each rank moves its own part."
        )
    if found:
        home = next(iter(found))
        accelerators = {n: b.device for n, b in model.named_buffers() if b.device.type != "cpu"}
        _one({next(iter(found.values())): home} | accelerators)
        return home
    return _one({n: t.device for n, t in named_tensors.tensors(model).items()}) or _HOST


_HOST = torch.device("cpu")


def _one(devices) -> torch.device | None:
    """The one accelerator of ``devices``, by the names of what is there; None where there is none.

    Raises:
        ConfigError: There are two, or the parameters are on the host beside a buffer on one.
    """
    found = {}
    for name, device in devices.items():
        if device.type not in ("cpu", "meta"):
            found.setdefault(device, name)
    if len(found) > 1:
        raise ConfigError(
            f"{_two(found)}: a rank computes on one device.\n  Move the model and its inputs to "
            "one device, or leave the model on the CPU."
        )
    return next(iter(found), None)


def _two(found) -> str:
    (one, first), (other, second) = list(found.items())[:2]
    return f"'{first}' is on {one} and '{second}' on {other}"


def _chosen(kind: str, local_rank: int) -> int:
    """The current device if it is not the first one, which then the script has chosen; the only one
    that this rank sees; else ranks of a host count through them."""
    count = _count(kind)
    current = torch.get_device_module(kind).current_device()
    return current if current else local_rank % count


def _count(kind: str) -> int:
    accelerator = torch.accelerator.current_accelerator()
    count = torch.accelerator.device_count() if accelerator and accelerator.type == kind else 0
    if not count:
        raise ConfigError(f"Config(device='{kind}'): this rank sees {_seen(kind, 0)}")
    return count


def _seen(kind: str, count: int) -> str:
    variable = VISIBLE.get(kind)
    chosen = os.environ.get(variable) if variable else None
    text = f"{count or 'no'} device{'s' * (count != 1)} of this kind"
    return f"{text}, as {variable} is '{chosen}'" if chosen is not None else text
