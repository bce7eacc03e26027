"""The model's tensors by name, and which rank holds which of them.

A tensor that this rank does not hold is a meta tensor in the same Python object, so that every
reference the user has (optimizer groups, ``model.layers[3].weight``) stays valid.
"""

import contextlib
import json

import torch
from torch import nn

from pyrannc.errors import PlanError


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by every name they have; tied ones appear under each."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))


def written(graph) -> set[str]:
    """What some node of a captured graph writes, by the name of what holds its memory."""
    return {graph.values[graph.values[v].storage].name for n in graph.nodes for v in n.writes}


def places(model: nn.Module) -> dict[str, tuple[dict, str]]:
    """Where the modules keep each of these: a dictionary, and the key there."""
    return {
        f"{path}.{name}" if path else name: (registry, name)
        for path, module in model.named_modules(remove_duplicate=False)
        for registry in (module._parameters, module._buffers)
        for name in registry
    }


@contextlib.contextmanager
def in_place(model: nn.Module, others: dict[int, torch.Tensor]):
    """Inside, ``others[id(tensor)]`` are where the modules keep these tensors. Afterwards these
    tensors are there again, whatever has been put there inside."""
    before = [(registry, name, registry[name]) for registry, name in places(model).values()]
    try:
        for registry, name, tensor in before:
            registry[name] = others.get(id(tensor), tensor)
        yield
    finally:
        for registry, name, tensor in before:
            registry[name] = tensor


def release(tensor: torch.Tensor) -> None:
    """Frees the memory of a parameter or buffer; it stays the same object, on the meta device."""
    _swap(tensor, torch.empty_like(tensor, device="meta", requires_grad=False))
    tensor.grad = None


def materialize(tensor: torch.Tensor) -> None:
    """Gives a released tensor memory again; its values are undefined."""
    _swap(tensor, torch.empty_like(tensor, device="cpu", requires_grad=False))


def _swap(tensor, other):
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(other, requires_grad=tensor.requires_grad)
    # What torch.utils.swap_tensors calls after it has refused tensors with weak references, which
    # nn.LSTM keeps of its weights. They stay right here: the Python object remains the same.
    torch._C._swap_tensor_impl(tensor, other)


def raw(tensor: torch.Tensor):
    """The bytes of a contiguous CPU tensor as a writable buffer that shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def write(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Copies into a tensor that may repeat its memory, as ``torch.ones(1).expand(4)`` does."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor, content = tensor.narrow(dim, 0, 1), content.narrow(dim, 0, 1)
    tensor.copy_(content)


def broadcast(comm, tensor: torch.Tensor, root: int, ranks: list[int]) -> None:
    """``tensor`` of ``root`` into that of every rank in ``ranks``, in place."""
    # Complex numbers may lie there as their conjugates.
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    comm.broadcast_into(raw(whole), root, ranks)
    if whole.data_ptr() != tensor.data_ptr():
        write(tensor.detach(), whole)


class Owners:
    """For each tensor name, the ranks that hold it, ascending; equal on all ranks.

    They are the ranks whose stages use it in the first capture that does.
    """

    def __init__(self, comm, model: nn.Module):
        self._comm = comm
        self._model = model
        self._used = set()  # names that some capture uses
        self.ranks = {name: list(range(comm.size)) for name in tensors(model)}

    def assign(self, local: set[str], shared=()) -> None:
        """Lets every rank hold what its stages use (``local``, by name) and frees the rest.

        What no stage uses stays on rank 0, for the checkpoints. Tied names go together.

        Raises:
            PlanError: Two tensors of ``shared``, pairs of names that have memory in common, come to
                lie on different ranks. On every rank.
        """
        users = self.users(local)
        self._used.update(users)
        held = tensors(self._model)
        for name in held:
            self.ranks[name] = users.get(name, [0])
        everywhere = list(range(self._comm.size))
        for one, other in shared:
            if self.ranks[one] != self.ranks.get(other, everywhere):
                raise PlanError(
                    f"'{one}' and '{other}' are two tensors that share memory, but the plan puts "
                    "them on different ranks, where a change of the one would not reach the "
                    "other.\n  Tie parameters by making them one: b.weight = a.weight; compute "
                    "views of them in forward(); or use Config(partition_num=1)."
                )
        for name, tensor in held.items():
            if self._comm.rank not in self.ranks[name] and not tensor.is_meta:
                release(tensor)

    def peers(self) -> list[int]:
        """The ranks that hold a tensor that requires a gradient and that this rank holds, too."""
        held = tensors(self._model)
        mine = [ranks for name, ranks in self.ranks.items() if held[name].requires_grad]
        return sorted(set().union(*(ranks for ranks in mine if self._comm.rank in ranks)))

    def users(self, local: set[str]) -> dict[str, list[int]]:
        """For each name that some rank uses (``local``), the ranks that do. Tied names go together.

        Collective.
        """
        wanted = [set(json.loads(item)) for item in self._gather(sorted(local))]
        held = tensors(self._model)
        names_of = {}
        for name, tensor in held.items():
            names_of.setdefault(id(tensor), set()).add(name)
        users = {
            name: [rank for rank, names in enumerate(wanted) if names & names_of[id(tensor)]]
            for name, tensor in held.items()
        }
        return {name: ranks for name, ranks in users.items() if ranks}

    def move_unused(self, users: dict[str, list[int]], moved) -> None:
        """Lets ``users`` hold what no capture has used so far. Collective.

        ``moved(tensor, root, ranks)`` is called on every rank for each tensor, while the rank
        ``root``, which held it, and ``ranks``, which will, have it.
        """
        done = set()
        for name, tensor in tensors(self._model).items():
            if name not in users or name in self._used:
                continue
            root, takers = self.ranks[name][0], users[name]
            self.ranks[name] = takers
            if id(tensor) in done:
                continue
            done.add(id(tensor))
            if self._comm.rank in takers and tensor.is_meta:
                materialize(tensor)
            ranks = sorted({root, *takers})
            if self._comm.rank in ranks and len(ranks) > 1:
                broadcast(self._comm, tensor, root, ranks)
            moved(tensor, root, takers)
            if self._comm.rank not in takers and not tensor.is_meta:
                release(tensor)
        self._used.update(users)

    def _gather(self, value) -> list[str]:
        return [item.decode() for item in self._comm.all_gather(json.dumps(value).encode())]
