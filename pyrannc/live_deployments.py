"""The live deployments of this process, found by a tensor or an optimizer of theirs."""

import operator
import weakref

from pyrannc.state.released import is_released

_deployments = weakref.WeakSet()
_last = [None]
# By optimizer: references to the parameters it held when its deployments were found, and these.
# Walking through models at each step of each optimizer would take longer than small steps do.
_of_optimizers = weakref.WeakKeyDictionary()


def add(deployment) -> None:
    _deployments.add(deployment)
    forget()


def forget() -> None:
    """A model may have other parameters from now on."""
    _of_optimizers.clear()


def remove(deployment) -> None:
    _deployments.discard(deployment)
    if last_backward() is deployment:
        _last[0] = None


def take_all() -> list:
    """All of them, in the order in which every rank has made them; none is live after that."""
    found = in_order()
    _deployments.clear()
    _last[0] = None
    return found


def of_tensors(tensors) -> list:
    """The deployments of which some parameter, or its gradient, is among ``tensors``; in the order
    in which every rank has made them."""
    wanted = {id(tensor) for tensor in tensors}
    return [each for each in in_order() if wanted & _known(each)]


def of_optimizer(optimizer, held=None) -> list:
    """The deployments that were made with ``optimizer``, or with one around it, or of which it
    holds a parameter. The first are also known on a rank whose part of it is empty.

    Args:
        held: The parameters of its groups, where they are known.
    """
    if held is None:
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    known = _of_optimizers.get(optimizer)
    if known is not None:
        references, found = known
        # A tensor has one weak reference for all, as long as somebody keeps it.
        if [*map(id, map(weakref.ref, held))] == [*map(id, references)]:
            return [each for each in in_order() if each in found]
    wanted = set(map(id, held))
    found = [each for each in in_order() if is_given(optimizer, each) or wanted & _known(each)]
    _of_optimizers[optimizer] = [*map(weakref.ref, held)], weakref.WeakSet(found)
    return found


def is_given(optimizer, deployment) -> bool:
    """Whether the deployment was made with ``optimizer``, or with one around it."""
    return any(each is optimizer for each in deployment.task.all_optimizers)


def outside(optimizer) -> list:
    """The parameters with a gradient that it holds, and no deployment."""
    known = set().union(*map(_known, _deployments))
    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    return [each for each in held if id(each) not in known and each.grad is not None]


def world():
    """All ranks, where models run on several; else None."""
    return next((each.world for each in _deployments if each.world.size > 1), None)


def last_backward():
    """The deployment whose backward was the last one; None before the first."""
    return _last[0] and _last[0]()


def note_backward(deployment) -> None:
    _last[0] = weakref.ref(deployment)


def in_order():
    return sorted(_deployments, key=operator.attrgetter("number"))


def _known(deployment):
    known = set()
    for parameter in deployment.model.parameters():
        known.add(id(parameter))
        if not is_released(parameter) and parameter.grad is not None:
            known.add(id(parameter.grad))
    return known
