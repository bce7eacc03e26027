"""``get_state_dict``, ``set_state_dict`` of torch.distributed.checkpoint, with wrapped models.

torch joins what the ranks give by names, so each gives its own part, without a copy. What torch
asks of a module and an optimizer to get there is answered here for those that are spread over the
ranks; all others take torch's own way.
"""

import copy

import torch

from pyrannc.errors import RaNNCError
from pyrannc.optimizer import around_another, steps_on_copies
from pyrannc.optimizer.state import kept_state, master_weights, named_state, shard_states
from pyrannc.optimizer.step import masters
from pyrannc.ranks import any_of, of_rank
from pyrannc.state import checkpoint, torch_private
from pyrannc.state.released import is_released


def _deployment(model):
    """That of a wrapped model which is spread over several ranks."""
    found = getattr(model, "_deployment", None) if hasattr(model, "undeploy") else None
    return found if found is not None and found.world.size > 1 else None


def _get_model(torchs, model, info):
    deployment = _deployment(model)
    if deployment is None or not info.handle_model or info.submodule_prefixes:
        return torchs(model, info)
    if info.full_state_dict:
        state = model.state_dict(rank0_only=info.cpu_offload)
    else:
        state = checkpoint.own_part(deployment.model)
        # Modules, and what they keep beside tensors, are on every rank; that of rank 0 counts.
        extra = of_rank(0, deployment.world, checkpoint.extra_states(deployment.model))
        state |= {checkpoint.extra_state_name(path): each for path, each in extra.items()}
    if info.ignore_frozen_params:
        for name, parameter in deployment.model.named_parameters(remove_duplicate=False):
            if not parameter.requires_grad:
                state.pop(name, None)
    return state


def _load_model(torchs, model, state_dict, info):
    deployment = _deployment(model)
    if deployment is None or not info.handle_model:
        return torchs(model, state_dict, info)
    if info.full_state_dict or info.broadcast_from_rank0:
        return model.load_state_dict(state_dict, strict=info.strict)
    return checkpoint.load_own_part(deployment.model, state_dict, info.strict)


def _get_optimizer(torchs, model, optimizers, info):
    deployment = _deployment(model)
    if deployment is None or not info.handle_optim:
        return torchs(model, optimizers, info)
    found = {"state": {}, "param_groups": []}
    for optimizer in optimizers:
        _refuse(optimizer)
        names = named_state.names(optimizer, deployment.model)
        if info.full_state_dict:
            state = optimizer.state_dict(rank0_only=info.cpu_offload)
            order = [name for group in names for name in group]
            content = {order[number]: entry for number, entry in state["state"].items()}
        else:
            # Also whoever steps a part of a parameter: what it gives is what it will be given.
            content = shard_states.whole(optimizer, deployment, everywhere=True)
            if not any_of(deployment.world, content):
                content = _begun(optimizer, deployment.model)
        found["state"] |= content
        everyones = named_state.options(optimizer, deployment.model)
        for options, params in zip(everyones, names, strict=True):
            found["param_groups"].append({**copy.deepcopy(options), "params": list(params)})
    if info.full_state_dict and info.cpu_offload and deployment.world.rank:
        return {}
    if info.flatten_optimizer_state_dict:
        return torch_private.flatten_optimizer_state(found)
    return found


def _refuse(optimizer):
    """Raises RaNNCError for an optimizer whose state is more than an entry of each parameter, for
    which torch's format has no place."""
    around_another.refuse(optimizer, "torch.distributed.checkpoint")
    if others := kept_state.of_none(optimizer):
        raise RaNNCError(
            f"torch.distributed.checkpoint: {type(optimizer).__name__} keeps '{next(iter(others))}'"
            ", which is of no parameter, and torch stores states by the names of parameters.\n"
            "  Use pyrannc.save(), or what optimizer.state_dict() gives."
        )


def _begun(optimizer, model) -> dict:
    """What an optimizer that has not stepped on any rank would keep of each parameter here, by
    name: dcp.load() reads into what is there, so torch takes a step with gradients that are zero.
    Here copies of the parameters are stepped.

    Raises:
        RaNNCError: That cannot be done.
    """
    has_masters = masters.attached(optimizer)
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    copies, groups, held = {}, [], []  # the copies by name
    for group in optimizer.param_groups:
        groups.append([])
        held.append([])
        for parameter in group["params"]:
            if is_released(parameter) or not parameter.requires_grad:
                continue
            dtype = master_weights.stepped_dtype(parameter) if has_masters else parameter.dtype
            copied = torch.zeros_like(parameter, dtype=dtype, requires_grad=True)
            copied.grad = torch.zeros_like(copied)
            copies[name_of[id(parameter)]] = copied
            groups[-1].append(copied)
            held[-1].append(parameter)
    tried = steps_on_copies.trial(optimizer, groups, held)
    try:
        steps_on_copies.step(optimizer, tried)
    except Exception as error:
        raise RaNNCError(
            f"torch.distributed.checkpoint: {type(optimizer).__name__} has no state yet, and a "
            f"step to get one has failed ({type(error).__name__}: {error}).\n  Take the first step "
            "before this."
        ) from error
    found = {name: dict(tried.state[copied]) for name, copied in copies.items()}
    for name, parameter in model.named_parameters():
        if has_masters and name in found and master_weights.has_master(parameter):
            found[name][master_weights.KEY] = parameter.detach().float()
    return {name: entry for name, entry in found.items() if entry}


def _load_optimizer(torchs, model, optimizers, state_dict, info):
    deployment = _deployment(model)
    if deployment is None or not info.handle_optim:
        return torchs(model, optimizers, state_dict, info)
    for optimizer in optimizers:
        _refuse(optimizer)
        names = named_state.names(optimizer, deployment.model)
        if info.broadcast_from_rank0 or (info.full_state_dict and info.cpu_offload):
            optimizer.load_state_dict(_numbered(state_dict, names))
            continue
        held = {
            name
            for name, parameter in deployment.model.named_parameters()
            if any(parameter is each for group in optimizer.param_groups
                   for each in group["params"])
        }  # fmt: skip
        if "state" in state_dict:
            content = {name: state_dict["state"].get(name) for name in held}
            of_name = {
                name: group for group in state_dict["param_groups"] for name in group["params"]
            }
            options = [
                {key: value for key, value in of_name[group[0]].items() if key != "params"}
                for group in names
            ]
        else:
            content, options = _unflattened(state_dict, names, held, optimizer)
        content = {name: entry for name, entry in content.items() if entry}
        named_state.load(optimizer, deployment.model, options, content)
    return None


def _numbered(state_dict, names):
    """A state by names as one process's optimizer takes it."""
    if not state_dict:
        return {}
    order = {name: number for number, name in enumerate(each for group in names for each in group)}
    return {
        "state": {order[n]: entry for n, entry in state_dict["state"].items() if n in order},
        "param_groups": [
            {**group, "params": [order[name] for name in group["params"]]}
            for group in state_dict["param_groups"]
            if group["params"] and group["params"][0] in order
        ],
    }


def _unflattened(state_dict, names, held, optimizer):
    content = {name: {} for name in held}
    for key, value in state_dict.items():
        if not key.startswith("state."):
            continue
        name, _, what = key.removeprefix("state.").rpartition(".")
        if name in content:
            content[name][what] = value
    options = []
    for group, params in zip(optimizer.param_groups, names, strict=True):
        options.append(
            {
                key: state_dict[f"param_groups.{params[0]}.{key}"]
                for key in group
                if key != "params" and f"param_groups.{params[0]}.{key}" in state_dict
            }
        )
    return content, options


def replaced() -> dict:
    """Functions of torch's module, by name, and what stands in their places."""
    ours = (_get_model, _load_model, _get_optimizer, _load_optimizer)
    return dict(zip(torch_private.STATE_DICT_FUNCTIONS, ours, strict=True))
