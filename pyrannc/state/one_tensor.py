"""One parameter, or its gradient, from a rank that holds it to all ranks."""

import json

from pyrannc import _C
from pyrannc.errors import RaNNCError
from pyrannc.state import named_tensors, tensor_parts
from pyrannc.state.released import blank


def parameter_named(model, name):
    """Raises RaNNCError that names the closest one where there is none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if name not in parameters:
        close = _C.util.closest(str(name), sorted(parameters))
        raise RaNNCError(f"the model has no parameter '{name}'; did you mean '{close}'?")
    return parameters[name]


def value(model, deployment, name):
    """A copy on the CPU. Collective; before the first call (``deployment`` None) this rank's."""
    parameter = parameter_named(model, name)
    if deployment is None:
        return parameter.detach().cpu().clone()
    return _from_owner(deployment, name, parameter, parameter)


def gradient(model, deployment, name):
    """The same of its gradient; None where it has none."""
    parameter = parameter_named(model, name)
    if deployment is None:
        return None if parameter.grad is None else parameter.grad.detach().cpu().clone()
    world, owner = deployment.world, deployment.owners.ranks[name][0]
    # In words of the owner, as the others know nothing of it.
    there = json.dumps(parameter.grad is not None).encode() if world.rank == owner else b""
    if not json.loads(world.broadcast(there, owner)):
        return None
    whole = _from_owner(deployment, name, parameter, parameter.grad).contiguous()
    steps = deployment.sharded_steps
    for rank, (begin, end) in (steps.shards.of(parameter) if steps else {}).items():
        part = whole.view(-1)[begin:end]  # its sum has come to this rank alone
        if rank == world.rank:
            part.copy_(parameter.grad.detach().reshape(-1)[begin:end])
        named_tensors.broadcast(world, part, rank, list(range(world.size)))
    return whole


def _from_owner(deployment, name, parameter, held):
    world, owner = deployment.world, deployment.owners.ranks[name][0]
    joined = (
        tensor_parts.whole(held)
        if tensor_parts.is_part(held) and owner in held.place_of_part.ranks
        else None
    )
    if world.rank == owner and joined is not None:
        whole = joined
    elif world.rank == owner:  # a gradient may be longer than its parameter
        whole = held.detach().to("cpu", parameter.dtype, copy=True)
    else:
        whole = blank(parameter, device="cpu")
    named_tensors.broadcast(world, whole, owner, list(range(world.size)))
    return whole
