"""``gather_inputs=False``: the batch is that of rank 0, and all ranks get its outputs."""

import pickle

import torch

from pyrannc import _C
from pyrannc.capture.arguments import pytree
from pyrannc.capture.arguments.batch_dims import find_batch_dims, input_names
from pyrannc.capture.arguments.call import Call
from pyrannc.errors import RaNNCError
from pyrannc.ranks import of_rank


def arguments(world, model, args, kwargs, batch_dims, known):
    """The arguments of rank 0's call, without any row on the other ranks, and which dimension of
    each holds the rows, by its path. Collective.

    Args:
        batch_dims: Of the model; see :func:`find_batch_dims`, also for ``known``.
    """
    message = b""
    if world.rank == 0:
        try:
            call = Call(args, kwargs)
            dims = find_batch_dims(call, input_names(model, call), batch_dims, known)
            tensors = map(_without_rows, call.tensors, dims)
            tree = pytree.unflatten(call.shape, list(tensors))
            known = dict(zip(call.paths, dims, strict=True))
            message = pickle.dumps((tree, known))
        except RaNNCError as error:
            message = pickle.dumps((type(error).__name__, str(error)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            text = f"gather_inputs=False sends rank 0's arguments to all ranks: {error}"
            message = pickle.dumps(("RaNNCError", text))
    tree, known = pickle.loads(world.broadcast(message, 0))
    if isinstance(tree, str):
        raise getattr(_C.util, tree)(known)
    if world.rank == 0:
        return args, kwargs, known
    return tree["args"], tree["kwargs"], known


def _without_rows(tensor, dim):
    """A tensor without rows is the same on every rank."""
    own = tensor.detach()
    own = own if dim is None else own.narrow(dim, 0, 0)
    return own.clone().requires_grad_(tensor.requires_grad)  # not its storage with all rows


def to_all(world, captured, outputs) -> list:
    """What rank 0 got, on every rank. Only the gradients of rank 0's outputs count. Collective."""
    graph = captured.graph
    return [
        _OfRank0.apply(output, world)
        if isinstance(output, torch.Tensor) and _has_rows(graph.values[value])
        else output
        for output, value in zip(outputs, graph.outputs, strict=True)
    ]


def _has_rows(value):
    return bool(value.dims) and _C.plan.can_be_dealt_out(value)


class _OfRank0(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, world):
        ctx.own = own.shape if world.rank else None
        found = of_rank(0, world, own.detach().clone())
        return own.view_as(own) if world.rank == 0 else found

    @staticmethod
    def backward(ctx, gradient):
        return gradient if ctx.own is None else gradient.new_zeros(ctx.own), None
