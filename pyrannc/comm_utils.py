"""What the ranks of a job do together outside of a model; the names are those of RaNNC 0.7."""

import io
import pickle

import torch

from pyrannc import launch, live_deployments
from pyrannc.errors import CommError, RaNNCError
from pyrannc.job import nccl, transport
from pyrannc.ranks import gathered, of_rank, on_all
from pyrannc.state import tensor_parts
from pyrannc.state.released import is_released


def bcast_obj(obj, root: int = 0):
    """``obj`` of rank ``root``, on every rank. Collective.

    Raises:
        RaNNCError: There is no such rank.
    """
    world = launch.world()
    if not 0 <= root < world.size:
        raise RaNNCError(f"bcast_obj: there is no rank {root} among {world.size}")
    return of_rank(root, world, obj)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU of a tensor, all of it: also of a parameter or gradient of which this rank
    has a part (``Config(tensor_parallel=N)``). No gradient comes through it.

    The ranks that hold the other parts call it, too.

    Raises:
        RaNNCError: This rank has nothing of it, or it is a gradient of which each replica has the
            sum of a range alone (``zero=True``).
    """
    if is_released(tensor):
        raise RaNNCError(
            f"full() of {tensor!r}.\n  Call it on ranks that hold it, or use summon()."
        )
    if tensor_parts.is_part(tensor):
        _refuse_ranges(tensor.place_of_part)
        return tensor_parts.whole(tensor)
    return tensor.detach().cpu().clone()


def _refuse_ranges(place):
    if place.what.startswith("gradient") and place.summed_in_ranges:
        raise RaNNCError(
            f"full() of the gradient of '{place.name}': with zero=True each replica has the sum of "
            f"a range alone.\n  Use model.get_param_grad('{place.name}'), which all ranks call."
        )


def all_gather(ten, buf: torch.Tensor | None = None) -> list | None:
    """Without ``buf`` a list of what all ranks have given, in rank order. Collective.

    Args:
        ten: A tensor, or anything that may be pickled, such as a number, a text or a dict. Without
            ``buf`` each rank may give something else, and tensors, also in lists, tuples and dicts,
            come to the host.
        buf: A tensor for as many entries as the ranks' tensors have together, of the same dtype,
            into which they are written, one after the other.

    Raises:
        RaNNCError: On every rank, where what one of them gives cannot be pickled; or ``buf`` or the
            tensor of a rank is of another size or dtype.

    >>> all_gather({"right": 3, "seen": 4})
    [{'right': 3, 'seen': 4}]
    """
    world = launch.world()
    if buf is None:
        return [pickle.loads(each) for each in on_all(world, lambda: _sent(ten))]
    mine = {"entries": ten.numel(), "dtype": str(ten.dtype), "room": buf.numel()}
    fits = buf.numel() == world.size * ten.numel() and buf.dtype == ten.dtype
    own = ten.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    everyones = gathered(world, (mine, fits, own))
    for rank, (their, fit, _) in enumerate(everyones):
        if not fit or (their["entries"], their["dtype"]) != (ten.numel(), str(ten.dtype)):
            raise RaNNCError(
                f"all_gather: rank {rank} gives {their['entries']} entries of {their['dtype']} and "
                f"has room for {their['room']}, rank {world.rank} gives {ten.numel()} of "
                f"{ten.dtype}; buf takes {world.size} times as many, of the same dtype"
            )
    with torch.no_grad():
        pieces = [
            torch.frombuffer(bytearray(content), dtype=torch.uint8).view(ten.dtype)
            for _, _, content in everyones
            if content
        ]
        if pieces:
            buf.copy_(torch.cat(pieces).reshape(buf.shape))
    return None


def _sent(value) -> bytes:
    try:
        _OnHost(sent := io.BytesIO()).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RaNNCError(f"all_gather of what cannot be pickled: {error}") from error
    return sent.getvalue()


class _OnHost(pickle.Pickler):
    def reducer_override(self, value):
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        # Not all of its storage, of which it may be a small part.
        return value.detach().cpu().clone().__reduce_ex__(pickle.DEFAULT_PROTOCOL)


def recreate_all_communicators() -> None:
    """Returns when every rank has called it. The one of the host stays, those of NCCL are made
    anew. Collective.

    Raises:
        CommError: A rank does not answer, or messages of a call that failed are left over.
    """
    world = launch.world()
    if left := transport.left_messages(world):
        raise CommError(
            f"{left}\n  A communicator is not made anew within a job: start the job again."
        )
    world.barrier()
    nccl.reconnect(world)


def clear() -> None:
    """Ends the plans of all wrapped models and lets go of what they hold; the ranks stay together.

    These models cannot be called any more. Build and wrap another one.
    """
    for deployment in live_deployments.take_all():
        deployment.end("pyrannc.clear()")
