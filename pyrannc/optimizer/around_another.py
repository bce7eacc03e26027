"""Optimizers around another one, as Lookahead is: they step it, and keep some state beside its own.

Both step the same parameters on a rank. What a state_dict() of the two has in it is the outer one's
choice, so nobody else can put it together from the parts of the ranks.
"""

import collections

import torch

from pyrannc.errors import RaNNCError


def inner(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Those that it keeps and whose state is not its own, as it is in a mere wrapper."""
    return [
        each
        for each in vars(optimizer).values()
        if isinstance(each, torch.optim.Optimizer) and each.state is not optimizer.state
    ]


def complete(optimizer: torch.optim.Optimizer) -> None:
    """Gives one around another one, which may not call super().__init__(), as its groups would be
    others, the lists of hooks for which torch and RaNNC ask."""
    held = vars(optimizer)
    if any(isinstance(each, torch.optim.Optimizer) for each in held.values()):
        for name, value in vars(torch.optim.SGD([torch.zeros(1)])).items():
            if type(value) is collections.OrderedDict:
                held.setdefault(name, value)
        held.setdefault("defaults", {})


def with_inner(optimizers) -> list[torch.optim.Optimizer]:
    """Each of them, and behind it those that it keeps."""
    return [each for one in optimizers for each in (one, *inner(one))]


def refuse(optimizer: torch.optim.Optimizer, what: str) -> None:
    """Raises RaNNCError where the state that ``what`` is about is in part another optimizer's."""
    gives_its_own = type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
    found = inner(optimizer) if gives_its_own else []
    if found:
        raise RaNNCError(
            f"{what}: {type(optimizer).__name__} is around {type(found[0]).__name__}, and gives "
            "the state of both in a way of its own, which cannot be put together from the parts "
            "of the ranks.\n  Save and load the model without it, and on each rank what its "
            "state_dict(from_global=False) gives; or train without it."
        )
