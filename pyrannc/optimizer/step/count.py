"""How often, and with which settings, the user's optimizers have stepped: the same on all ranks."""

import weakref

import torch

from pyrannc.errors import RaNNCError
from pyrannc.optimizer.step.participant import Participant

_PLAIN = (bool, int, float, str, type(None))
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

    def take_settings(self) -> list[str]:
        """Of the groups, such as ``lr``, in each step since the last call of this."""
        found, self._settings = self._settings, []
        return found

    def add(self, optimizer) -> None:
        """One more, of ``optimizer``."""
        self.taken += 1
        self._settings.append(_settings(optimizer))
        if self._deployment().call_agreement.summoned is not None:
            raise RaNNCError(
                "optimizer.step() inside summon(), at whose end not every rank keeps what it has "
                "changed.\n  Step after the end of the block; the parameters are no longer of one "
                "model: load a checkpoint."
            )


class Count(Participant):
    """Lets each deployment count the steps of its optimizers."""

    def before(self, step):
        return True  # a deployment may come in the closure

    def after(self, step, begun):
        for deployment in step.deployments:
            deployment.optimizer_steps.add(step.optimizer)


def _settings(optimizer) -> str:
    """Numbers and flags of the groups that the class has by default: those of this rank alone, and
    what an optimizer notes of its parameters, are none."""
    names = [name for name in optimizer.defaults if name not in _MEANS]
    groups = []
    for group in optimizer.param_groups:
        # Adafactor says itself how far a step goes, and transformers' schedule for it notes in "lr"
        # how far it went with the first parameter here.
        noted = ["lr"] if group.get("relative_step") else []
        said = []
        for name in names:
            value = group.get(name)
            if name in noted:
                continue
            if not isinstance(value, _PLAIN):
                value = _plain(value)
            if value is not _OTHER:
                said.append(f"{name} = {value!r}")
        groups.append(", ".join(said))
    return f"{type(optimizer).__name__}: " + "; ".join(groups)


def _plain(value):
    """``value``, which is no plain one, as it is compared; _OTHER where it is not."""
    if isinstance(value, torch.Tensor):  # that of a device is not waited for
        whole = value.dim() == 0 and value.device.type == "cpu"
        return value.item() if whole else _OTHER
    plain = isinstance(value, tuple) and not [e for e in value if not isinstance(e, _PLAIN)]
    return value if plain else _OTHER
