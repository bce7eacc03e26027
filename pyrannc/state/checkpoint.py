"""The whole model's state by name, gathered from the ranks that hold it and handed back to them."""

import collections
import contextlib
import copy
import dataclasses
import functools

import torch
from torch import nn

from pyrannc import _C
from pyrannc.errors import RaNNCError
from pyrannc.ranks import first_fault, gathered, of_rank
from pyrannc.state import named_tensors, torch_private
from pyrannc.state.mover import Mover, shaped
from pyrannc.state.released import is_released, loading
from pyrannc.state.torch_private import EXTRA_STATE


def gather_state(model, deployment, rank0_only: bool, destination=None, prefix="") -> dict:
    """What ``model.state_dict()`` would be on one process, by the model's own methods and hooks.

    Collective. With ``rank0_only`` the other ranks get an empty dict. ``destination`` and
    ``prefix``: the dict that gets it, and what its names begin with.
    """
    comm, owners = deployment.world, deployment.owners
    wanted = comm.rank == 0 or not rank0_only
    ranks = [0] if rank0_only else list(range(comm.size))
    copies = {}  # by id, so that tied tensors stay tied

    def keep(tensor, numbers):
        whole = shaped(numbers, tensor)
        if isinstance(tensor, nn.Parameter):
            whole = nn.Parameter(whole, requires_grad=tensor.requires_grad)
        copies[id(tensor)] = whole

    with Mover(comm) as mover:
        for path, tensor in {id(t): (p, t) for p, t in persistent(model).items()}.values():
            start = owners.layout(path)
            end = _C.plan.Layout.whole(path, start.shape, ranks)
            then = functools.partial(keep, tensor) if wanted else None
            mover.add(start, end, tensor, tensor.dtype, then)
    if not wanted:
        return collections.OrderedDict() if destination is None else destination
    with named_tensors.in_place(model, copies):
        return model.state_dict(destination=destination, prefix=prefix)


def scatter_state(model, deployment, given: dict[str, torch.Tensor], strict: bool):
    """Loads ``given`` into the tensors of each rank, by the model's own methods and hooks.

    Collective. A rank with an empty dict takes what rank 0 has loaded. Where a rank cannot load its
    dict all of them raise, and nothing has changed.
    """
    comm, owners = deployment.world, deployment.owners
    has_own = gathered(comm, bool(given))
    has_own[0] = True
    held = persistent(model)
    takers_of = {path: [rank for rank in owners.ranks[path] if not has_own[rank]] for path in held}
    loaded, found, fault, cause = {}, None, "", None
    if has_own[comm.rank]:
        try:
            loaded, found = _load(model, given, strict)
        except Exception as error:  # torch's, or of a hook of the model
            fault, cause = str(error) or type(error).__name__, error
        else:
            fault = _left(given.keys() - loaded.keys(), takers_of) if comm.rank == 0 else ""
    # On every rank, as the others would wait for one that stops here.
    if wrong := first_fault(comm, fault):
        raise RaNNCError("load_state_dict on rank {}: {}".format(*wrong)) from cause
    news = _news(model, given, loaded, found) if comm.rank == 0 else None
    from_root = of_rank(0, comm, news)
    with torch.no_grad(), Mover(comm) as mover:
        for path, tensor in held.items():
            if path in loaded and comm.rank in owners.ranks[path]:
                named_tensors.write(tensor, loaded[path])
            if path in from_root.changed:
                mover.from_rank_0(path, tensor, takers_of[path], loaded.get(path))
    if has_own[comm.rank]:
        return found
    for path, extra in from_root.extra.items():
        model.get_submodule(path).set_extra_state(extra)
    return from_root.found


@dataclasses.dataclass
class _News:
    """What ranks without a state_dict have to know of rank 0's."""

    found: object  # what load_state_dict() returns
    changed: set  # paths of tensors
    extra: dict  # what set_extra_state() gets, by the path of the module


def _news(model, given, loaded, found):
    extra = {}
    for path, module in model.named_modules():
        key = extra_state_name(path)
        if key in given and type(module).set_extra_state is not nn.Module.set_extra_state:
            extra[path] = given[key]
    return _News(found, set(loaded), extra)


def _load(model, given, strict):
    """``model.load_state_dict(given, strict)``, but for the tensors: what would be copied into
    them, by path, and what that returns. Where a module writes its tensor by itself, that is it.
    """
    before = persistent(model)
    mine = collections.OrderedDict(given)
    if hasattr(given, "_metadata"):  # in which torch notes `assign`, for all who load it later
        mine._metadata = copy.deepcopy(given._metadata)
    with named_tensors.in_place(model, {}), loading(), _without_swaps():
        # What is given takes the places of what is here, for as long as that.
        found = model.load_state_dict(mine, strict=strict, assign=True)
        after = persistent(model)
    loaded = {
        path: after[path].detach()
        for path, tensor in before.items()
        if path in after
        and (after[path] is not tensor or (path in given and not is_released(tensor)))
    }
    return loaded, found


@contextlib.contextmanager
def _without_swaps():
    """A script may have torch swap what two tensors hold where it would put one in the place of the
    other: what is given would then hold what was here."""
    future = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(False)
    try:
        yield
    finally:
        future.set_swap_module_params_on_conversion(before)


def _left(paths, takers_of) -> str:
    """What is wrong where rank 0 has been given tensors, but has not got them for others."""
    left = sorted(path for path in paths if takers_of.get(path))
    if not left:
        return ""
    return (
        f"the module of '{left[0]}' loads it in a way of its own, which only works on the ranks "
        f"that hold it ({', '.join(map(str, takers_of[left[0]]))}), and they have an empty "
        "state_dict.\n  Give every rank the whole state_dict."
    )


def part_of(model, state_dict, prefix: str, metadata: dict) -> dict[str, torch.Tensor]:
    """The state of ``model`` in that of an outer module, whose names begin with ``prefix``.

    ``metadata`` is that of ``model`` itself.
    """
    names = [name for name in state_dict if name.startswith(prefix)]
    part = collections.OrderedDict((name.removeprefix(prefix), state_dict[name]) for name in names)
    if "version" in metadata:
        # torch hands the versions of inner modules to nobody but themselves; the state is taken to
        # be of the versions that are here. A state without any stays without.
        part._metadata = model.state_dict(keep_vars=True)._metadata | {"": metadata}
    return part


def own_part(model) -> dict[str, torch.Tensor]:
    """What this rank holds of the model's state, by all its names; the tensors themselves."""
    return {
        name: tensor.detach()
        for name, tensor in persistent(model).items()
        if not is_released(tensor)
    }


@torch.no_grad()
def load_own_part(model, state: dict[str, torch.Tensor], strict: bool):
    """The other way round; returns what load_state_dict() does.

    Raises:
        RaNNCError: With ``strict``, a tensor of this rank is missing, or one is of no model.
    """
    held, takes = persistent(model), takers_of_extra_states(model)
    wanted = [*own_part(model), *takes.values()]
    missing = [name for name in wanted if name not in state]
    extra = [name for name in state if name not in held and name not in takes.values()]
    if strict and (missing or extra):
        raise RaNNCError(
            f"the state lacks {missing} of this rank's part, and has {extra}, which the model has "
            "not.\n  Load it into the state_dict that get_state_dict() of this model has given."
        )
    for name, value in state.items():
        if name in held and not is_released(held[name]):
            named_tensors.write(held[name], value)
    set_extra_states(model, {path: state[name] for path, name in takes.items() if name in state})
    return torch_private.IncompatibleKeys(missing, extra)


def extra_states(model) -> dict:
    """What ``get_extra_state()`` of the modules that have one gives, by their paths."""
    return {
        path: module.get_extra_state()
        for path, module in model.named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def set_extra_states(model, states: dict) -> None:
    """Of modules that take none, or are not there, what is in ``states`` is left alone."""
    takes = takers_of_extra_states(model)
    for path, state in states.items():
        if path in takes:
            model.get_submodule(path).set_extra_state(state)


def takers_of_extra_states(model) -> dict[str, str]:
    """By path of a module that has a set_extra_state(): the key in a state_dict()."""
    return {
        path: extra_state_name(path)
        for path, module in model.named_modules()
        if type(module).set_extra_state is not nn.Module.set_extra_state
    }


def extra_state_name(path: str) -> str:
    return f"{path}.{EXTRA_STATE}" if path else EXTRA_STATE


def persistent(model) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by all their paths, in the order of these, which is the
    same on all ranks; released ones among them."""
    found = {
        f"{path}.{name}" if path else name: tensor
        for path, module in model.named_modules(remove_duplicate=False)
        for registry, left_out in (
            (module._parameters, ()),
            (module._buffers, module._non_persistent_buffers_set),
        )
        for name, tensor in registry.items()
        if tensor is not None and name not in left_out
    }
    return dict(sorted(found.items()))
