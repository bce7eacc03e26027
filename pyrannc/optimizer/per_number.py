"""Whether a step of the user's optimizer treats each number of a parameter by itself.

Then the replicas of a stage can share its state, wherever one's part of a parameter ends.
"""

import torch

from pyrannc import log
from pyrannc.errors import ConfigError
from pyrannc.optimizer import elementwise, user_optimizer

# Of torch: no norm, factor or product of a parameter's numbers.
_KNOWN = (
    torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam,
    torch.optim.Adamax, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD,
)  # fmt: skip


def wanted(zero):
    """Raises ConfigError unless ``zero`` is True, False, "auto" or "parameters"."""
    if zero not in (True, False, "auto", "parameters"):
        raise ConfigError(f"zero is {zero!r}; it must be True, False, 'auto' or 'parameters'")
    return zero


def possible(zero, optimizers):
    """``zero``, or False for "auto" where the state of some optimizer cannot be shared out.

    Raises:
        ConfigError: It is True or "parameters", and this cannot be; names the optimizer.
    """
    for optimizer in optimizers if zero else ():
        if zero != "auto":
            check(optimizer)
        elif fault := reason(optimizer):
            log.info("module", f"zero: {type(optimizer).__name__} is not shared out, as {fault}")
            return False
    return zero


def check(optimizer: torch.optim.Optimizer, setting: str = "zero") -> None:
    """Raises ConfigError that names a class whose step of a parameter is another than those of its
    halves; ``setting``: that lets each rank step a part."""
    fault = reason(optimizer)
    if fault:
        raise ConfigError(
            f"{setting} shares the state of {type(optimizer).__name__} out over "
            f"{'the replicas' if setting == 'zero' else 'ranks'}, each of which steps a part of a "
            f"parameter, but {fault}.\n  Use an optimizer that treats each number by itself, such "
            f"as Adam, AdamW or SGD, or leave {setting} out."
        )


def reason(optimizer: torch.optim.Optimizer) -> str:
    """Why the state of ``optimizer`` cannot be shared out; empty if it can."""
    if type(optimizer) in _KNOWN:
        return ""
    if user_optimizer.has_modes(optimizer):
        return "its train() and eval() change whole parameters beside its steps"
    try:
        return elementwise.fault_of_halves(optimizer)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"its step could not be tried on halves of small copies ({text})"
