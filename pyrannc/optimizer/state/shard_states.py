"""Optimizer states of parts of parameters: cut out of whole ones, and put together again."""

import torch

from pyrannc import _C
from pyrannc.errors import RaNNCError
from pyrannc.optimizer.state import kept_state, named_state
from pyrannc.ranks import gathered, of_rank
from pyrannc.state import tensor_parts
from pyrannc.state.mover import Mover


def cut(optimizer, shards, model) -> None:
    """Lets ``optimizer`` keep of what it has the part that this rank steps."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, entry in kept_state.of_parameters(optimizer).items():
        piece = shards.mine(parameter)
        if piece is None or not entry:
            continue
        begin, end = piece
        if begin == end:
            del optimizer.state[parameter]
        else:
            optimizer.state[parameter] = part_of(entry, parameter, piece, name_of[id(parameter)])


def part_of(entry: dict, parameter, piece, name: str) -> dict:
    """The part of a parameter's whole state; a part of that size stays as it is.

    Raises:
        RaNNCError: It is of another part of the parameter.
    """
    begin, end = piece
    shape = parameter.shape
    if tensor_parts.is_part(parameter):
        place = parameter.place_of_part
        shape = torch.Size(place.part_shape(place.number))
        entry = tensor_parts.cut_entry(entry, place)
    if end - begin == shape.numel():
        return entry
    found = {}
    for key, value in entry.items():
        if isinstance(value, torch.Tensor) and value.shape == shape:
            found[key] = value.reshape(-1)[begin:end].clone()
        elif (
            isinstance(value, torch.Tensor)
            and value.dim() == 1
            and len(value) not in (1, end - begin)
        ):
            raise RaNNCError(
                f"the state '{key}' of '{name}' has {len(value)} numbers: neither those of the "
                f"whole parameter, {list(shape)}, nor the {end - begin} that this rank steps.\n  "
                "Load what optimizer.state_dict() gave rank 0, or pyrannc.save() wrote."
            )
        else:
            found[key] = value
    return found


def answers(deployment, name: str) -> int:
    """The rank that gives the whole state of a parameter."""
    steps = deployment.sharded_steps
    ranges = steps.shards.pieces.get(name) if steps else None
    return next(iter(ranges)) if ranges else deployment.owners.ranks[name][0]


def whole(optimizer, deployment, everywhere: bool = False) -> dict[str, dict]:
    """The state of each parameter that this rank steps, by name, where several ranks step a part of
    it put together: on the one that answers for it, or, with ``everywhere``, on all that step a
    part. Others have none of it. Collective where parameters are shared out.
    """
    found = named_state.entries(optimizer, deployment.model)
    parameters = dict(deployment.model.named_parameters())
    steps = deployment.sharded_steps
    for name, entry in sorted(found.items()):
        shared = steps is not None and name in steps.shards.pieces
        if tensor_parts.is_part(parameters[name]) and not shared:
            found[name] = tensor_parts.whole_state(entry, parameters[name].place_of_part)
    if steps is None:
        return found
    shards, comm = steps.shards, deployment.world
    single = _single_numbers(comm, found, shards, parameters)
    for names, ranks in shards.together:
        if comm.rank not in ranks:
            continue
        with Mover(comm, ranks) as mover:
            for name in names:
                ranges = shards.pieces.get(name, ())
                if len(ranges) < 2 or comm.rank not in ranges or name not in found:
                    continue
                start, shape = shards.layout(parameters[name]), parameters[name].shape
                takers = list(ranges) if everywhere else [next(iter(ranges))]
                end = _C.plan.Layout.whole(name, shape, takers)
                entry = dict(found.pop(name))
                if comm.rank in takers:
                    found[name] = entry
                for key in sorted(entry, key=str):
                    value = entry[key]
                    piece = ranges[comm.rank]
                    if key in single or not _is_part(value, piece, parameters[name]):
                        continue

                    def keep(numbers, entry=entry, key=key, shape=shape, device=value.device):
                        entry[key] = numbers.view(shape).to(device)

                    then = keep if comm.rank in takers else None
                    mover.add(start, end, value, value.dtype, then)
    return found


def _single_numbers(comm, entries, shards, parameters) -> set:
    """What is one number of each parameter, as counts of steps are, on whatever rank: beside a part
    of one number it looks like that part's. Collective."""
    mine = {
        key
        for name, ranges in shards.pieces.items()
        if name in entries and comm.rank in ranges
        for key, value in entries[name].items()
        if isinstance(value, torch.Tensor)
        and value.shape == (1,)
        and not _is_part(value, ranges[comm.rank], parameters[name])
    }
    return set().union(*gathered(comm, mine))


def give_all(optimizer, deployment, shards) -> None:
    """Every rank that holds a parameter has its whole state again. Collective."""
    comm = deployment.world
    parameters = dict(deployment.model.named_parameters())
    found = whole(optimizer, deployment, everywhere=True)
    for names, ranks in shards.together:
        for name in names:
            if name not in shards.pieces:
                continue
            first = next(iter(shards.pieces[name]))
            entry = of_rank(first, comm, _on_host(found.get(name)) if comm.rank == first else None)
            if not entry or comm.rank not in ranks:
                continue
            parameter = parameters[name]
            if comm.rank in shards.pieces[name]:
                optimizer.state[parameter] = found[name]
            else:
                optimizer.state[parameter] = {
                    key: value.to(parameter.device) if with_parameter else value
                    for key, (value, with_parameter) in entry.items()
                }


def _on_host(entry):
    """Of each its value on the host, and whether it has the size of the parameter."""
    return entry and {
        key: (value.cpu(), value.dim() > 0) if isinstance(value, torch.Tensor) else (value, False)
        for key, value in entry.items()
    }


def _is_part(value, piece, parameter):
    if not isinstance(value, torch.Tensor):
        return False
    begin, end = piece
    if tensor_parts.is_part(parameter) and parameter.place_of_part.is_of(value):
        return end - begin == value.numel()
    return value.shape == (end - begin,) or (
        end - begin == parameter.numel() and value.shape == parameter.shape
    )
