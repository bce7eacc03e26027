"""Steps of the user's optimizer on masters of its parameters.

Between steps the optimizer is what it was, and a parameter's master stands among its state, under
``master_weights.KEY``: so it is saved, loaded, shared out and moved with it. For the time of a step
the parameter is its master and its gradient is of 32 bits, so the rest of the state is, too.
"""

import weakref

import torch

from pyrannc.errors import ConfigError
from pyrannc.optimizer import user_optimizer
from pyrannc.optimizer.state import kept_state
from pyrannc.optimizer.state.master_weights import KEY, SHORT
from pyrannc.optimizer.step.participant import Lender
from pyrannc.state.released import is_released

_of_optimizer = weakref.WeakKeyDictionary()


def attach(optimizer: torch.optim.Optimizer) -> None:
    """From here on ``optimizer`` steps masters.

    Raises:
        ConfigError: It changes parameters beside its steps, which their masters would not see.
    """
    if user_optimizer.has_modes(optimizer):
        raise ConfigError(
            f"master_weights lets {type(optimizer).__name__} step copies of 32 bits, but its "
            "train() and eval() change the parameters themselves, beside its steps.\n  Use another "
            "optimizer, such as AdamW, or float32 weights and torch.autocast()."
        )
    if optimizer not in _of_optimizer:
        _of_optimizer[optimizer] = _LoadingHooks(optimizer)


def attached(optimizer) -> bool:
    return optimizer in _of_optimizer


def end_loading(optimizer) -> None:
    """After a loading, also one that has failed: the parameters are themselves again."""
    if optimizer in _of_optimizer:
        _of_optimizer[optimizer].loaded()


def _has_master_here(parameter) -> bool:
    """Also while it is frozen: it keeps what it has, and is stepped where its gradient is zero and
    not None. An optimizer that was made after the first call holds the parameters of other ranks,
    too."""
    return not is_released(parameter) and parameter.dtype in SHORT


def lengthen_gradients(optimizer) -> None:
    """Gradients become those of the masters, as a scaler would lose small ones of 16 bits."""
    if optimizer not in _of_optimizer:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if _has_master_here(parameter) and parameter.grad is not None:
                gradient = parameter.grad.float()
                parameter.grad = None
                parameter.grad_dtype = None  # of any dtype
                parameter.grad = gradient


class Masters(Lender):
    """The step is of the masters of parameters with gradients."""

    @torch.no_grad()
    def lend(self, step, lent):
        if step.optimizer in _of_optimizer:
            for parameter in step.held:
                if _has_master_here(parameter) and parameter.grad is not None:
                    lent.append(_Lent(parameter, step.optimizer.state))

    def take_back(self, step, lent):
        _take_back(lent)


def _take_back(lent):
    while lent:
        lent.pop().take_back()


class _LoadingHooks:
    """Of an optimizer."""

    def __init__(self, optimizer):
        self._lent = []
        _lengthen_state(optimizer)
        optimizer.register_load_state_dict_pre_hook(self.loads)
        optimizer.register_load_state_dict_post_hook(self.loaded)

    def loads(self, optimizer, state):
        """torch gives a state the dtype of its parameter."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if _has_master_here(parameter):
                    self._lent.append(_OfAnyValue(parameter))

    def loaded(self, *_):
        _take_back(self._lent)


class _Lent:
    """A parameter during a step, which is its master then."""

    def __init__(self, parameter, state):
        self._parameter, self._state = parameter, state
        self._short, self._gradient = parameter.data, parameter.grad
        gradient, entry = self._gradient.float(), state[parameter]
        master = _brought_up_to(entry.get(KEY), self._short)
        entry.pop(KEY, None)  # from here on nothing takes memory, so nothing fails
        parameter.grad = None
        parameter.data = master
        parameter.grad = gradient

    @torch.no_grad()
    def take_back(self):
        parameter = self._parameter
        parameter.grad = None
        self._state[parameter][KEY] = parameter.data  # the optimizer may have put another there
        self._short.copy_(parameter.data)
        parameter.data = self._short
        if self._gradient.dtype != self._short.dtype:
            parameter.grad_dtype = None
        parameter.grad = self._gradient


class _OfAnyValue:
    """A parameter while its state is loaded: of 32 bits, and without memory."""

    def __init__(self, parameter):
        self._parameter, self._short, self._gradient = parameter, parameter.data, parameter.grad
        parameter.grad = None
        parameter.data = torch.zeros((), dtype=torch.float32, device=self._short.device).expand(
            self._short.shape
        )

    def take_back(self):
        self._parameter.data = self._short
        if self._gradient is not None and self._gradient.dtype != self._short.dtype:
            self._parameter.grad_dtype = None
        self._parameter.grad = self._gradient


def _lengthen_state(optimizer):
    """What a class keeps of each parameter from the start on, as Adagrad does, is of 32 bits."""
    for parameter, entry in kept_state.of_parameters(optimizer).items():
        for key, value in entry.items():
            if torch.is_tensor(value) and value.shape == parameter.shape and value.dtype in SHORT:
                entry[key] = value.float()


def _brought_up_to(master, short):
    """``master``, or what has been written to the parameter since, such as loaded weights."""
    if master is None:
        return short.float()
    written = master.to(short.dtype) != short
    if short.device.type == "cpu" and not written.any():  # elsewhere to ask is to wait
        return master
    return torch.where(written, short.float(), master)
