"""Which ranks hold which tensors of the model."""

import functools

from torch import nn

from pyrannc import _C
from pyrannc.errors import PlanError, RaNNCError
from pyrannc.ranks import gathered
from pyrannc.state import tensor_parts
from pyrannc.state.gradients_elsewhere import GradientsElsewhere
from pyrannc.state.mover import Mover
from pyrannc.state.named_tensors import tensors, write_flat
from pyrannc.state.released import is_released, materialize, release
from pyrannc.state.sums.elsewhere import Questions


class _RanksOf(dict):
    """Ranks by the name of a tensor."""

    def __missing__(self, name):
        raise RaNNCError(
            f"'{name}' is a tensor that the model did not have in its first call: modules were put "
            "into it or taken out of it since, as merge_and_unload() of PEFT does.\n  Wrap the "
            "changed model in a RaNNCModule of its own."
        )


class Owners:
    """For each tensor name, the ranks that hold it, ascending; equal on all ranks.

    They are the ranks whose stages use it in the first capture that does.
    """

    def __init__(self, comm, model: nn.Module):
        self._comm = comm
        self._model = model
        self._used = set()  # names that some capture uses
        everywhere = list(range(comm.size))
        self.ranks = _RanksOf((name, everywhere.copy()) for name in tensors(model))
        self._parts = {}  # by name, what each place has of it where none has the whole
        self._replicas = {}  # of those the ranks that are such places, where replicas share it
        self.gradients = GradientsElsewhere()
        self.gradients.owners = self
        self.questions = Questions(self)

    def cut(self, name: str, dim: int, stretches: list, replicas=None) -> None:
        """From here on no rank has the whole of a tensor: each place of a group has its stretches
        (``[place]``) of a dimension; or each of ``replicas``, in this order."""
        cut = tensors(self._model)
        for other, tensor in cut.items():
            if tensor is cut[name]:
                self._parts[other] = dim, stretches
                if replicas is not None:
                    self._replicas[other] = list(replicas)

    def places(self, name: str) -> int:
        """How many ranks hold a tensor together."""
        return len(self._parts[name][1]) if name in self._parts else 1

    def part(self, name: str, rank=None):
        """The dimension of a tensor that is cut, and the stretches of it that a rank has, or would
        have; None: the whole."""
        if name not in self._parts:
            return None
        dim, stretches = self._parts[name]
        rank = self._comm.rank if rank is None else rank
        if name in self._replicas:
            return dim, stretches[self._replicas[name].index(rank)]
        return dim, stretches[rank % len(stretches)]

    def shared(self) -> set:
        """Names of the parameters that replicas share."""
        return {*self._replicas}

    def parts(self) -> dict:
        """By the name of each tensor: the dimension that is cut, and the stretches of each place;
        none where each has the whole."""
        return {name: self._parts.get(name, (0, [])) for name in self.ranks}

    def layout(self, name: str, ranks=None):
        """``_C.plan.Layout``: which rank holds which numbers of a tensor.

        Args:
            ranks: Of these alone; default: of all.
        """
        ranks = self.ranks[name] if ranks is None else ranks
        shape = tensors(self._model)[name].shape
        if name not in self._parts:
            return _C.plan.Layout.whole(name, shape, ranks)
        holders = [
            ([rank], tensor_parts.boxes(shape, *self.part(name, rank)), None) for rank in ranks
        ]
        return _C.plan.Layout(name, shape, holders)

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
            if self._comm.rank not in self.ranks[name] and not is_released(tensor):
                release(tensor, name, self.ranks[name], self.gradients)
        self.gradients.used = self._used

    @property
    def world(self):
        return self._comm

    @property
    def model(self):
        return self._model

    def can_sum(self) -> bool:
        """Whether each tensor is whole on the ranks that hold it."""
        return not any(map(tensor_parts.is_part, tensors(self._model).values()))

    def peers(self) -> list[int]:
        """The ranks that hold a tensor that requires a gradient and that this rank holds, too."""
        held = tensors(self._model)
        mine = [ranks for name, ranks in self.ranks.items() if held[name].requires_grad]
        return sorted(set().union(*(ranks for ranks in mine if self._comm.rank in ranks)))

    def held(self):
        """The model, and the ranks of each tensor, by name."""
        return self._model, self.ranks

    def users(self, local: set[str]) -> dict[str, list[int]]:
        """For each name that some rank uses (``local``), the ranks that do. Tied names go together.

        Collective.
        """
        wanted = gathered(self._comm, local)
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
        done = {}  # by id: name, tensor, root and takers
        with Mover(self._comm) as mover:
            for name, tensor in tensors(self._model).items():
                if name not in users or name in self._used:
                    continue
                holders, takers = self.ranks[name], users[name]
                self.ranks[name] = takers
                if is_released(tensor):
                    tensor.place_elsewhere.ranks = takers
                if id(tensor) in done:
                    continue
                done[id(tensor)] = name, tensor, holders[0], takers
                then = None
                if self._comm.rank in takers and is_released(tensor):
                    materialize(tensor)
                    then = functools.partial(write_flat, tensor)
                start = self.layout(name, holders)
                missing = [rank for rank in takers if rank not in holders]
                end = _C.plan.Layout.whole(name, start.shape, missing)
                mover.add(start, end, tensor, tensor.dtype, then)
        for name, tensor, root, takers in done.values():
            moved(tensor, root, takers)
            if self._comm.rank not in takers and not is_released(tensor):
                release(tensor, name, self.ranks[name], self.gradients)
        self._used.update(users)
        self.gradients.used = self._used

    def give_all(self, moved) -> None:
        """Lets every rank hold everything; ``moved`` as for :meth:`move_unused`. Collective."""
        self._used.clear()
        self._parts.clear()  # each has been made whole before
        self._replicas.clear()
        everyone = list(range(self._comm.size))
        self.move_unused({name: everyone for name in self.ranks}, moved)
