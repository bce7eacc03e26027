"""What save() and load() are called with, wrapped or not, before the first call or after."""

import dataclasses

from torch import nn

from pyrannc import launch, live_deployments
from pyrannc.errors import RaNNCError
from pyrannc.module import RaNNCModule
from pyrannc.optimizer import around_another, user_optimizer
from pyrannc.optimizer.state import kept_state, named_state, shard_states
from pyrannc.state import checkpoint, named_tensors, tensor_parts
from pyrannc.state.model_device import device_of


@dataclasses.dataclass(frozen=True)
class Job:
    """A model, those who step it, and the ranks.

    Attributes:
        model: The user's.
        deployment: Of the model. None before the first call, and for a model that is not wrapped.
        holders: By id of a tensor that not every rank has, those that do.
        optimizers: Tuple.
        world: All ranks.
        device: Of the model.
        masters_may_come: The optimizers step masters, or may do so once the model is wrapped.
    """

    model: nn.Module
    deployment: object
    holders: dict
    optimizers: tuple
    world: object
    device: object
    masters_may_come: bool

    def ranks_of(self, tensor) -> list[int]:
        """Who holds a tensor of the model, and answers for it."""
        return self.holders.get(id(tensor), [0])

    def refuse_optimizers_of_others(self, what: str) -> None:
        """Raises RaNNCError where one is of a wrapped model that is not this, but a part of it."""
        for each in self.optimizers:
            named_state.refuse_outer(each, self.model, what)

    def piece(self, parameter) -> tuple | None:
        """The range of its numbers of which this rank has the optimizer's state; None: of all."""
        steps = self.deployment.sharded_steps if self.deployment is not None else None
        return steps.shards.mine(parameter) if steps else None

    def wholes(self, writer: dict) -> dict:
        """By name the whole of tensors that ranks have parts of, where this rank writes it.
        Collective."""
        found = {}
        for name, tensor in checkpoint.persistent(self.model).items():
            if name not in writer or not tensor_parts.is_part(tensor):
                continue
            if writer[name] in tensor.place_of_part.ranks:
                whole = tensor_parts.whole(tensor)
                if writer[name] == self.world.rank:
                    found[name] = whole
        return found

    def states(self, optimizer, writer) -> dict[str, dict]:
        """The whole state of each parameter that this rank writes, by name. Collective.

        Args:
            writer: Function that gives the rank that writes a parameter, by name.
        """
        if self.deployment is not None:
            kept_state.compare_of_none(optimizer, self.world, "pyrannc.save()")
        if self.deployment is None or self.deployment.sharded_steps is None:
            if self.deployment is None:
                found = named_state.entries(optimizer, self.model)
            else:
                found = shard_states.whole(optimizer, self.deployment)
            return {name: each for name, each in found.items() if writer(name) == self.world.rank}
        shared = self.deployment.sharded_steps.shards.pieces
        return {
            name: entry
            for name, entry in shard_states.whole(optimizer, self.deployment).items()
            if name in shared or writer(name) == self.world.rank
        }


def of(what: str, module, optimizer) -> Job:
    """All ranks call it; ``what`` they do, in words.

    Raises:
        RaNNCError: ``module`` is no module, or the ranks do not do the same; an optimizer is around
            another one.
    """
    if not isinstance(module, nn.Module):
        raise RaNNCError(
            f"{what} takes the model as its second argument, not {type(module).__name__}"
        )
    wrapped = isinstance(module, RaNNCModule)
    model = module.module if wrapped else module
    # Also those of models inside, as of the one that torch's AveragedModel has in it.
    inside = live_deployments.of_tensors(model.parameters())
    deployment = next((each for each in inside if each.model is model), None)
    world = inside[0].world if inside else launch.world()
    for each in inside:
        each.call_agreement.other(what)
    optimizers = user_optimizer.listed(optimizer)
    for each in optimizers:
        around_another.refuse(each, what)
    holders = {
        id(tensor): each.owners.ranks[name]
        for each in inside
        for name, tensor in named_tensors.tensors(each.model).items()
    }
    masters = not wrapped or module._given.master_weights
    return Job(model, deployment, holders, optimizers, world, device_of(model), masters)
