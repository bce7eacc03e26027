"""The whole model's state by name, gathered from the ranks that hold it and handed back to them."""

import collections
import json

import torch

from pyrannc import state
from pyrannc.errors import RaNNCError


def gather_state(model, deployment, rank0_only: bool, destination=None, prefix="") -> dict:
    """What ``model.state_dict()`` would be on one process: parameters and persistent buffers.

    Collective. With ``rank0_only`` the other ranks get an empty dict. ``destination`` and
    ``prefix``: the dict that gets it, and what its names begin with.
    """
    comm, owners = deployment.world, deployment.owners
    everyone = list(range(comm.size))
    wanted = comm.rank == 0 or not rank0_only
    if destination is None:
        destination = collections.OrderedDict()
        destination._metadata = collections.OrderedDict()
    if wanted and hasattr(destination, "_metadata"):
        destination._metadata.update(model.state_dict(prefix=prefix)._metadata)
    for name, tensor in _entries(model):
        holder = owners.ranks[name][0]
        ranks = sorted({0, holder}) if rank0_only else everyone
        if comm.rank not in ranks:
            continue
        whole = tensor.detach().clone() if comm.rank == holder else _empty(tensor)
        state.broadcast(comm, whole, holder, ranks)
        if wanted:
            destination[prefix + name] = whole
    return destination


def scatter_state(model, deployment, given: dict[str, torch.Tensor], strict: bool):
    """Loads ``given`` into the tensors of each rank.

    Collective. A rank with an empty dict takes rank 0's values; names and shapes are compared with
    the model's before anything is changed.
    """
    comm, owners = deployment.world, deployment.owners
    has_own = [flag == b"1" for flag in comm.all_gather(b"1" if given else b"0")]
    entries = dict(_entries(model))
    names = json.loads(comm.broadcast(json.dumps(sorted(given)).encode(), 0).decode())
    known = set(given or names)
    missing, unexpected = sorted(entries.keys() - known), sorted(known - entries.keys())
    fault = ""
    if strict and (missing or unexpected):
        fault = f"missing {missing}, unexpected {unexpected}"
    for name in entries.keys() & given.keys():
        if given[name].shape != entries[name].shape:
            fault = (
                f"'{name}' has shape {tuple(given[name].shape)}, "
                f"the model has {tuple(entries[name].shape)}"
            )
    # On every rank, as the others would wait for one that stops here.
    for rank, found in enumerate(comm.all_gather(fault.encode())):
        if found:
            raise RaNNCError(f"load_state_dict on rank {rank}: {found.decode()}")
    with torch.no_grad():
        for name, tensor in entries.items():
            takers = [rank for rank in owners.ranks[name] if not has_own[rank]]
            if comm.rank in owners.ranks[name] and name in given:
                state.write(tensor, given[name])
            if not takers or name not in known:
                continue
            ranks = sorted({0, *takers})
            if comm.rank not in ranks:
                continue
            whole = given[name].to(tensor.dtype).cpu() if comm.rank == 0 else _empty(tensor)
            state.broadcast(comm, whole.contiguous(), 0, ranks)
            if comm.rank in takers:
                state.write(tensor, whole)
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


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


def _entries(model):
    """Names and tensors of the model's own state_dict, in its order; released ones are meta."""
    held = state.tensors(model)
    return [(name, held[name]) for name in model.state_dict(keep_vars=True) if name in held]


def _empty(tensor):
    return torch.empty_like(tensor, device="cpu", requires_grad=False)
