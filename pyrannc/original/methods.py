"""Attributes that a RaNNCModule does not have: methods of RaNNC 0.7, and mistyped names."""

import difflib
import functools

from pyrannc.original import names


def missing(module, name):
    """What ``module.name`` is where neither it nor its model has any of this name.

    Raises:
        AttributeError: RaNNC 0.7 had none, either; names the closest one.
    """
    if name in SAME:
        return functools.partial(SAME[name], module)
    if name in names.METHODS:
        return names.answer(names.METHODS, name, "RaNNCModule.")
    if name in names.OF_TORCH:
        raise AttributeError(f"RaNNCModule has no {name}(): {names.OF_TORCH[name]}")
    hint = ""
    if not name.startswith("_"):  # which libraries look for, often
        known = [*_public(dir(type(module))), *SAME, *_public(dir(module.module))]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
    raise AttributeError(
        f"'{type(module).__name__}' object has no attribute '{name}', nor has its model, a "
        f"{type(module.module).__name__}{hint}"
    )


def _public(attributes):
    return [each for each in attributes if not each.startswith("_")]


def _sync_param(module, pid):
    return module.get_param(_name(module, pid))


def _sync_param_grad(module, pid):
    return module.get_param_grad(_name(module, pid))


def _name(module, pid):
    return next(
        (name for name, each in module.module.named_parameters() if id(each) == pid), f"id {pid}"
    )


# Methods of RaNNC 0.7 that only have another name here.
SAME = {
    "_calc_grad_norm": lambda module: module.calc_grad_norm(),
    "allreduce_grads_zero": lambda module: module.allreduce_grads(),
    "use_amp_master_params": lambda module: False,
    "sync_param": _sync_param,
    "sync_param_grad": _sync_param_grad,
}
