"""Which replica of a stage steps which numbers of its parameters.

The parameters whose gradients are summed as one array (a bucket of the Program) are shared out by
that array: each of its ranks has an equal range of it, wherever parameters begin and end there. So
most parameters are stepped by one rank, and few, at the ends of ranges, by two. Of ranges of each
parameter every rank would step as many tensors as without; of whole parameters (as torch's
ZeroRedundancyOptimizer has them) one large embedding would leave the other ranks nothing.

Under tensor parallelism the ranks of one place in their groups share such an array, of their parts.
"""

import dataclasses
import itertools

from pyrannc import _C
from pyrannc.state import named_tensors, tensor_parts


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
            shared out: the range of each rank that has one, in its part of the parameter.
        together: (names, ranks) of buckets of all places that have the same parameters.
    """

    def __init__(self, model, buckets, owners, rank: int):
        self.buckets, self._owners = buckets, owners
        parameters = dict(model.named_parameters())
        self.pieces = {}
        together = {}
        for bucket in buckets:
            together.setdefault(bucket.names, set()).update(bucket.ranks)
            for position, name in enumerate(bucket.names):
                if parameters[name].numel():  # else every rank steps it, who has nothing to do
                    self.pieces.setdefault(name, {}).update(bucket.pieces(position))
        self.together = [(names, sorted(ranks)) for names, ranks in together.items()]
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
        return _C.plan.Layout(
            name,
            shape,
            [
                ([rank], self._boxes(name, shape, rank), piece)
                for rank, piece in self.pieces[name].items()
            ],
        )

    def _boxes(self, name, shape, rank):
        part = self._owners.part(name, rank)
        if part is None:
            return [([0] * len(shape), shape)]
        return tensor_parts.row_major_boxes(shape, *part)

    def of(self, parameter) -> dict:
        """By rank the ranges of a parameter's numbers that are stepped; empty: not shared out."""
        return self.pieces.get(self._name.get(id(parameter)), {})


def find(model, graph, program, owners, places: int) -> list:
    """The buckets of ``program``, a ``_C.plan.Program`` of ``graph``, by the model's names; one for
    each of the ``places`` of a group."""
    tensors = named_tensors.tensors(model)
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    for values, groups in program.buckets:
        inside = [tensors[graph.values[value].name] for value in values]
        names = tuple(first_name[id(parameter)] for parameter in inside)
        for place in range(places):
            sizes = [
                tensor_parts.part_numel(tensors[name].shape, owners.part(name, place))
                for name in names
            ]
            begins = (0, *itertools.accumulate(sizes))
            share = _C.plan.shard_size(begins[-1], len(groups))
            ranks = tuple(group * places + place for group in groups)
            found.append(Bucket(names, begins, ranks, share))
    return found
