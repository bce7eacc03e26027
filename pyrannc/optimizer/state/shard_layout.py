"""Which replica of a stage steps which numbers of its parameters.

The parameters whose gradients are summed as one array (a bucket of the Program) are shared out by
that array: each of its ranks has an equal range of it, wherever parameters begin and end there. So
most parameters are stepped by one rank, and few, at the ends of ranges, by two. Of ranges of each
parameter every rank would step as many tensors as without; of whole parameters (as torch's
ZeroRedundancyOptimizer has them) one large embedding would leave the other ranks nothing.
"""

import dataclasses
import itertools

from pyrannc import _C
from pyrannc.state import named_tensors


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Parameters that lie one after the other in one array.

    Attributes:
        names: Of the parameters.
        begins: Of each in the array, and the array's end; in numbers.
        ranks: Ascending. Rank number i of them has the numbers from ``i * share`` on.
        share: Numbers of a rank; the last ones have less.
    """

    names: tuple
    begins: tuple
    ranks: tuple
    share: int

    def pieces(self, position: int) -> dict:
        """By rank, in their order: the range of a parameter's numbers that it steps."""
        begin, end = self.begins[position : position + 2]
        found = {}
        for number, rank in enumerate(self.ranks):
            first = max(begin, number * self.share)
            last = min(end, (number + 1) * self.share)
            if first < last:
                found[rank] = (first - begin, last - begin)
        return found


class Shards:
    """Which rank steps what, the same on all ranks.

    Attributes:
        buckets: [:class:`Bucket`].
        pieces: By name of a parameter (the first that it has in the model), for those that are
            shared out: the range of each rank that has one.
    """

    def __init__(self, model, buckets, rank: int):
        self.buckets = buckets
        parameters = dict(model.named_parameters())
        self.pieces = {
            name: bucket.pieces(position)
            for bucket in buckets
            for position, name in enumerate(bucket.names)
            if parameters[name].numel()  # else every rank steps it, who has nothing to do
        }
        self._name = {id(parameters[name]): name for name in self.pieces}
        self._mine = {
            id(parameters[name]): ranges.get(rank, (0, 0)) for name, ranges in self.pieces.items()
        }

    def mine(self, parameter) -> tuple | None:
        """The range of its numbers that this rank steps; None: it is not shared out."""
        return self._mine.get(id(parameter))

    def layout(self, parameter):
        """``_C.plan.Layout`` of the parts that are stepped."""
        name, shape = self._name[id(parameter)], parameter.shape
        whole = [([0] * len(shape), shape)]
        return _C.plan.Layout(
            name, shape, [([rank], whole, piece) for rank, piece in self.pieces[name].items()]
        )

    def of(self, parameter) -> dict:
        """By rank the ranges of a parameter's numbers that are stepped; empty: not shared out."""
        return self.pieces.get(self._name.get(id(parameter)), {})


def find(model, graph, program) -> list:
    """The buckets of ``program``, a ``_C.plan.Program`` of ``graph``, by the model's names."""
    tensors = named_tensors.tensors(model)
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    for values, ranks in program.buckets:
        inside = [tensors[graph.values[value].name] for value in values]
        begins = (0, *itertools.accumulate(parameter.numel() for parameter in inside))
        names = tuple(first_name[id(parameter)] for parameter in inside)
        share = _C.plan.shard_size(begins[-1], len(ranks))
        found.append(Bucket(names, begins, tuple(ranks), share))
    return found
