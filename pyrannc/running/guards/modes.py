"""Guards of modes: training, gradients, autocast, dropout."""

import torch

from pyrannc.running.guards.guard import Guard


class Training(Guard):
    """The modes of the modules."""

    def __init__(self, model, modules):
        self._model, self._modules = model, modules

    def now(self, call):
        return (self._model.training, *[module.training for module in self._modules])

    def difference(self, then, now):
        return "training mode" if now[0] else "eval mode"


class Trained(Guard):
    """Whether each parameter takes a gradient, which the user may change: layers are unfrozen."""

    def __init__(self, modules):
        self._modules = modules

    def now(self, call):
        found = [
            parameter.requires_grad
            for module in self._modules
            for parameter in module._parameters.values()
            if parameter is not None
        ]
        return tuple(found)

    def difference(self, then, now):
        if now == then:
            return ""
        return f"with gradients for {sum(now)} parameters instead of {sum(then)}"


class InputGradients(Guard):
    """Whether each tensor of a call takes a gradient."""

    def now(self, call):
        return tuple([tensor.requires_grad for tensor in call.tensors])


class Autocast(Guard):
    """The dtype of autocast on each kind of device; None where it is off."""

    def __init__(self, device):
        self._device = device

    def now(self, call):
        kinds = {"cpu", self._device.type, *[tensor.device.type for tensor in call.tensors]}
        found = [
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in sorted(kinds)
        ]
        return tuple(found)


class GradMode(Guard):
    """The grad mode, where forward() asks for it."""

    def __init__(self):
        self._is_asked = False

    def now(self, call):
        return torch.is_grad_enabled()

    def captured(self, capture, now):
        self._is_asked |= capture.grad is not None
        return capture.grad

    @staticmethod
    def same(then, now):
        return then in (None, now)

    def difference(self, then, now):
        return "under no_grad()" if self._is_asked and not now else ""


class Dropout(Guard):
    """Whether there is any; see ``RaNNCModule.enable_dropout``."""

    def __init__(self, deployment):
        self._deployment = deployment

    def now(self, call):
        return self._deployment.dropout

    def difference(self, then, now):
        return "" if now else "after enable_dropout(False)"
