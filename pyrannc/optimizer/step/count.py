"""How often, and with which settings, the user's optimizers have stepped: the same on all ranks."""

import weakref

import torch

from pyrannc import live_deployments
from pyrannc.errors import RaNNCError
from pyrannc.job import process

_PLAIN = bool | int | float | str | None
_OTHER = "not compared"
# How a step is computed, not what.
_MEANS = ("foreach", "fused", "capturable", "differentiable")


class OptimizerSteps:
    """Counts the steps of all optimizers with parameters of a deployment.

    Attributes:
        taken: Since the deployment was made.
    """

    def __init__(self, deployment):
        self.taken = 0
        self._settings = []
        self._deployment = weakref.ref(deployment)
        process.after_optimizer_steps(self, OptimizerSteps._count)

    def take_settings(self) -> list[str]:
        """Of the groups, such as ``lr``, in each step since the last call of this."""
        found, self._settings = self._settings, []
        return found

    def _count(self, optimizer):
        if self._deployment() not in live_deployments.of_optimizer(optimizer):
            return
        self.taken += 1
        self._settings.append(_settings(optimizer))
        if self._deployment().call_agreement.summoned is not None:
            raise RaNNCError(
                "optimizer.step() inside summon(), at whose end not every rank keeps what it has "
                "changed.\n  Step after the end of the block; the parameters are no longer of one "
                "model: load a checkpoint."
            )


def _settings(optimizer) -> str:
    """Numbers and flags of the groups that the class has by default: those of this rank alone, and
    what an optimizer notes of its parameters, are none."""
    names = [name for name in optimizer.defaults if name not in _MEANS]
    groups = []
    for group in optimizer.param_groups:
        # Adafactor says itself how far a step goes, and transformers' schedule for it notes in "lr"
        # how far it went with the first parameter here.
        noted = ["lr"] if group.get("relative_step") else []
        plain = [(name, _plain(group.get(name))) for name in names if name not in noted]
        groups.append(", ".join(f"{name} = {each!r}" for name, each in plain if each != _OTHER))
    return f"{type(optimizer).__name__}: " + "; ".join(groups)


def _plain(value):
    """``value`` as it is compared; _OTHER where it is not."""
    if isinstance(value, torch.Tensor):  # that of a device is not waited for
        whole = value.dim() == 0 and value.device.type == "cpu"
        return value.item() if whole else _OTHER
    plain = isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(isinstance(each, _PLAIN) for each in value)
    )
    return value if plain else _OTHER
