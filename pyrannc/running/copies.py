"""Copies of a wrapper, made before its first call, such as the one in torch's ``AveragedModel``.

An average in the loop pairs the parameters of a model with those of its copy, so both have to lie
on the same ranks. Of all copies of one wrapper, the first that is called decides for the others.
"""

import copy
import weakref

from pyrannc.optimizer.state import named_state
from pyrannc.optimizer.step import fused
from pyrannc.ranks import gathered
from pyrannc.state import mover, named_tensors


class Kin:
    """Wrappers that are copies of each other, in the order in which they were made."""

    def __init__(self, *wrappers):
        self._members = [weakref.ref(each) for each in wrappers]

    def __deepcopy__(self, memo):
        return self  # a copy has the same kin

    def __reduce__(self):
        return Kin, ()  # what is read from a file has none

    def copied(self, wrapper, memo):
        """A deep copy of ``wrapper``, which is one of these from here on."""
        made = type(wrapper).__new__(type(wrapper))
        memo[id(wrapper)] = made
        made.__setstate__(copy.deepcopy(wrapper.__getstate__(), memo))
        for optimizer in made._given.optimizers:
            named_state.mark(optimizer, made.module)
        made._first_values.then = None  # it is about the optimizers of ``wrapper``
        self._members.append(weakref.ref(made))
        return made

    def follow(self, leader, world) -> None:
        """After the first call of ``leader``: the others have its plan, and hold the same parts.

        Collective. Copies that were changed, or that some rank has no more, stay as they are.
        """
        members = [member() for member in self._members]
        mine = [
            number
            for number, each in enumerate(members)
            if each is not None and each._deployment is None and _alike(each, leader)
        ]
        everyones = map(set, gathered(world, mine))
        for number in sorted(set.intersection(*everyones)):
            _follow(members[number], leader._deployment)


def _alike(one, other):
    return type(one.module) is type(other.module) and _contents(one) == _contents(other)


def _contents(wrapper):
    held = named_tensors.tensors(wrapper.module)
    return [(name, tensor.shape, tensor.dtype) for name, tensor in held.items()]


def _follow(wrapper, deployment):
    config, world = deployment.task.config, deployment.world
    if config.sync_params_on_init and world.size > 1:
        mover.all_of_rank_0(world, wrapper.module)
    for optimizer in wrapper._given.optimizers if config.fused_optimizer else ():
        fused.prefer(optimizer)
    source = wrapper._values_beside(deployment.task.value_source, world)
    made = deployment.of_copy(wrapper.module, wrapper._given.optimizers, source)
    wrapper._put_to_work(made, None)
