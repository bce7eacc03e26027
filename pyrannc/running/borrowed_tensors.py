"""Tensors that a capture of the model uses on other ranks than those that hold them."""

import functools

from pyrannc.state import named_tensors, tensor_parts
from pyrannc.state.mover import Mover
from pyrannc.state.released import blank


class BorrowedTensors:
    """What one run borrows: where a call of another kind leads data through the stages in another
    order, or uses one of two layers with tied weights, ranks use tensors that they do not hold, or
    hold some that they do not use.

    Users that are no owners get a copy for each call, and drop it; owners have part in the sum of
    the gradients (``holders`` of the executor), and get what a call has written. So optimizers, and
    what a model is saved from, are those of the owners alone.

    Args:
        users: The ranks whose stages use a tensor, by its name, where they are not its owners.
        written: Names of tensors that a call writes.
    """

    def __init__(self, deployment, executor, users, written):
        self._comm, self._owners = deployment.world, deployment.owners
        self._places = {}  # by name: in which list of a call's tensors, and where
        for kind, names in enumerate((executor.parameter_names, executor.buffer_names)):
            self._places |= {name: (kind, index) for index, name in enumerate(names)}
        tensors = named_tensors.tensors(deployment.model)
        self._lent, self._returned = [], []  # name, tensor, its layouts before and after, takers
        done = set()
        for name, ranks in users.items():
            tensor, owners = tensors[name], deployment.owners.ranks[name]
            if id(tensor) in done:
                continue
            done.add(id(tensor))
            if takers := sorted(set(ranks) - set(owners)):
                self._lent.append((name, tensor, *self._layouts(name, owners, takers)))
            takers = sorted(set(owners) - set(ranks))
            if takers and name in written and tensor.numel():
                self._returned.append((name, tensor, *self._layouts(name, ranks, takers)))

    def begin(self, parameters, buffers):
        """The tensors of a call, with copies of what is borrowed. Collective."""
        call = list(parameters), list(buffers)

        def borrow(name, tensor, numbers):
            copy = blank(tensor, tensor.requires_grad)
            if (part := self._owners.part(name)) is not None:
                made = tensor_parts.joined(numbers, tensor.shape, *part)
                copy = made.to(copy.device).requires_grad_(tensor.requires_grad)
            else:
                named_tensors.write_flat(copy, numbers)
            kind, index = self._places[name]
            call[kind][index] = copy

        with Mover(self._comm) as mover:
            for name, tensor, start, end, takers in self._lent:
                then = functools.partial(borrow, name, tensor)
                then = then if self._comm.rank in takers else None
                mover.add(start, end, tensor, tensor.dtype, then)
        return call

    def end(self, *call):
        """Hands what the call has written to owners that did not take part. Collective."""
        with Mover(self._comm) as mover:
            for name, tensor, start, end, takers in self._returned:
                held, then = tensor, None
                if start.numel(self._comm.rank):
                    kind, index = self._places[name]
                    held = call[kind][index]
                if self._comm.rank in takers:
                    then = functools.partial(self._write, name, tensor)
                if start.numel(self._comm.rank) and (part := self._owners.part(name)) is not None:
                    held = tensor_parts.side_by_side(tensor_parts.plain(held), *part)
                mover.add(start, end, held, tensor.dtype, then)

    def _layouts(self, name, holders, takers):
        """Numbers come from the first rank, or group, that holds them."""
        holders = holders[: self._owners.places(name)]
        return self._owners.layout(name, holders), self._owners.layout(name, takers), takers

    def _write(self, name, tensor, numbers):
        part = self._owners.part(name)
        if part is None:
            named_tensors.write_flat(tensor, numbers)
        else:
            tensor_parts.plain(tensor).copy_(tensor_parts.joined(numbers, tensor.shape, *part))
