"""The one way from the ranks that hold numbers of a tensor to those that want them."""

import functools
import math

import torch

from pyrannc import _C
from pyrannc.state import named_tensors, torch_private
from pyrannc.state.released import blank

#: Of the tensors whose parts travel in one message.
#: tuned by: what separates many small tensors from large ones, which cost a message each anyway.
#: without it: a message for each tensor; with much more, what is packed is as long as the model.
_TOGETHER_BYTES = 64 << 20


class Mover:
    """What is added travels at the latest at the end of the ``with`` block. Collective.

    Args:
        comm: The communicator.
        ranks: All that take part; each may leave out tensors of which it neither has nor takes a
            part, and all that are added travel together. Default: all there are, which add the same
            tensors in the same order.
    """

    def __init__(self, comm, ranks=None):
        self._comm = comm
        self._ranks = list(range(comm.size)) if ranks is None else sorted(ranks)
        self._most_bytes = _TOGETHER_BYTES if ranks is None else math.inf
        self._items, self._then, self._bytes = [], [], 0

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._go()

    def add(self, start, end, held, dtype, then=None) -> None:
        """Lets a tensor that lies as ``start`` says lie as ``end`` does.

        Args:
            start: ``_C.plan.Layout``.
            end: The same, of the same shape.
            held: This rank's part under ``start``, in its own shape; ignored where it has none.
            dtype: Of the tensor, on all ranks.
            then: On ranks that take a part: gets that under ``end`` once it is there, as a flat
                tensor on the CPU.
        """
        rank = self._comm.rank
        taken = None
        if then is not None:
            taken = torch.empty(end.numel(rank), dtype=dtype)
            self._then.append((then, taken))
        if not end.parts:  # nobody wants a number of it: nothing is brought to the host
            return
        flat = _flat(held, dtype) if start.numel(rank) else None
        self._items.append((start, end, flat, taken))
        self._bytes += dtype.itemsize * math.prod(start.shape)
        if self._bytes >= self._most_bytes:
            self._go()

    def from_rank_0(self, name: str, tensor, ranks, content=None) -> None:
        """Writes rank 0's ``content``, or what its tensor holds, into that of ``ranks``."""
        start = _C.plan.Layout.whole(name, tensor.shape, [0])
        end = _C.plan.Layout.whole(name, tensor.shape, sorted({*ranks} - {0}))
        here = self._comm.rank in ranks and self._comm.rank != 0
        then = functools.partial(named_tensors.write_flat, tensor) if here else None
        self.add(start, end, tensor if content is None else content, tensor.dtype, then)

    def _go(self):
        # Also without any: ranks count these calls, by which they tell messages apart.
        _C.runtime.move_parts(self._comm, self._items, self._ranks)
        then, self._items, self._then, self._bytes = self._then, [], [], 0
        for each, taken in then:
            each(taken)


def _flat(held, dtype):
    """The numbers of a whole tensor or a part, side by side as a layout counts them."""
    place = getattr(held, "place_of_part", None)
    with torch_private.without_subclasses():
        held = held.detach().as_subclass(torch.Tensor)
        # Complex numbers may lie there as their conjugates; what a device holds goes by the host.
        held = held.to(dtype).resolve_conj().resolve_neg()
        return (held if place is None else place.side_by_side(held)).contiguous().cpu().reshape(-1)


def all_of_rank_0(comm, model) -> None:
    """Every tensor of rank 0's ``model`` into those of all ranks, but for those without values.
    Collective."""
    with Mover(comm) as mover:
        for name, tensor in named_tensors.once(model):
            if not tensor.is_meta:
                mover.from_rank_0(name, tensor, range(comm.size))


def shaped(flat, like):
    """A tensor of these numbers, with the shape of a whole one and as it lies in memory."""
    if getattr(like, "place_of_part", None) is not None or like.is_contiguous():
        return flat.view(like.shape)
    return blank(like, device="cpu").copy_(flat.view(like.shape))
