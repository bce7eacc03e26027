"""Replicas of a stage hold the same parameters and buffers, whatever a script does to them on each
rank."""

import math

import torch

from pyrannc.errors import RaNNCError
from pyrannc.loop.coming_to_host import ComingToHost
from pyrannc.ranks import gathered
from pyrannc.state import tensor_parts
from pyrannc.state.released import is_released

#: How far sums over a parameter may lie apart on two ranks, in its norm and in units of the last
#: place of its dtype; and never more than this part of the norm.
#: tuned by: safety margins: processors of two kinds round otherwise, in each of a million steps.
#: without it: ranks of two kinds of processors refuse to train together.
ROUNDING, LARGEST = 1000, 0.1

#: Elements that are widened at once.
#: tuned by: a bound on memory: 16 MiB.
#: without it: twice the memory of the largest parameter is needed between two steps.
_PIECE = 2**20


def is_checked_at(steps: int) -> bool:
    """After 1, 2, 4, 8 ... steps, so that it costs nothing."""
    return steps > 0 and steps & (steps - 1) == 0


class Sums:
    """Of the elements of this rank's tensors that others hold, too, and of their squares.

    Those of an accelerator come to the host meanwhile.

    Args:
        model: The user's.
        ranks_of: The ranks that hold a tensor, by its name.
        device: On which the ranks compute, each on one of its own: also a rank that holds nothing
            with others looks at the sums when they do.
    """

    @torch.no_grad()
    def __init__(self, model, ranks_of, device):
        self._shared = any(len(ranks) > 1 for ranks in ranks_of.values())
        shared = {
            name: tensor
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if len(ranks_of.get(name, ())) > 1
        }
        self._dtypes = {name: tensor.dtype for name, tensor in shared.items()}
        self._buffers = shared.keys() - {name for name, _ in model.named_parameters()}
        held = {name: each for name, each in shared.items() if not is_released(each)}
        mine = {name: _sums(tensor_parts.plain(each)) for name, each in held.items()}
        # Which part of it this rank has: those of one place are alike.
        self._places = [tensor_parts.number(each) for each in held.values()]
        self._names = list(mine)
        sums = [each.to(device) for each in mine.values()]  # some may stay on the host
        stacked = torch.stack(sums) if sums else torch.zeros(0, 2, device=device)
        self.waits = device.type != "cpu"
        self._sums = ComingToHost(stacked) if self.waits else stacked

    def refuse_unequal(self, world) -> None:
        """Collective.

        Raises:
            RaNNCError: A tensor differs on the ranks that hold it. On every rank.
        """
        if not self._shared:
            return
        sums = self._sums.value() if self.waits else self._sums
        mine = {
            f"{name}:{place}": each
            for name, place, each in zip(self._names, self._places, sums.tolist(), strict=True)
        }
        everyones = gathered(world, mine)
        for key in dict.fromkeys(key for each in everyones for key in each):
            name = key.rpartition(":")[0]
            if name not in self._dtypes:
                continue
            dtype = self._dtypes[name]
            found = {rank: sums[key] for rank, sums in enumerate(everyones) if key in sums}
            if len(found) < 2:
                continue
            (first, sums), *others = found.items()
            for rank, theirs in others:
                if _differ(sums, theirs, dtype):
                    what = "buffer" if name in self._buffers else "parameter"
                    raise RaNNCError(
                        f"{what} '{name}' is not the same on ranks {first} and {rank}, which "
                        f"both hold it: its elements add up to {sums[0]:.9g} and {theirs[0]:.9g}."
                        "\n  Something was done to it, to its gradient or with it on each rank by "
                        "itself: a write with what this rank alone has, a call of the model or of "
                        "its methods past the wrapper, a loss that uses it outside of forward(), "
                        "random numbers, settings of the optimizer. Gradients are summed over the "
                        "ranks where they come from a call of the RaNNCModule: compute in "
                        "forward(). Load a checkpoint, or begin again."
                    )


def _sums(tensor) -> torch.Tensor:
    elements = tensor.flatten()
    if elements.is_complex():
        elements = torch.view_as_real(elements).flatten()
    total = torch.zeros(2, dtype=torch.float64, device=tensor.device)
    for piece in elements.split(_PIECE):
        wide = piece.double()
        total += torch.stack([wide.sum(), wide.square().sum()])
    return total


def _differ(one, other, dtype) -> bool:
    if not all(map(math.isfinite, (*one, *other))):
        return repr(one) != repr(other)
    exact = not dtype.is_floating_point and not dtype.is_complex
    part = 0.0 if exact else min(ROUNDING * torch.finfo(dtype).eps, LARGEST)
    return abs(one[0] - other[0]) > part * math.sqrt(max(one[1], other[1]))
