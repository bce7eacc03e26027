"""The number of rows that one process would see, at which captures are compared with the model."""

import dataclasses

from pyrannc import _C
from pyrannc.capture.arguments import pytree
from pyrannc.capture.attributes.second_calls import LaterCallsDiffer
from pyrannc.capture.explained import OfValues
from pyrannc.capture.reference import describe
from pyrannc.capture.torch_private import FakeTensor

#: Errors of a capture that another number of rows would not spare.
OF_NO_ROWS = (LaterCallsDiffer, OfValues)


@dataclasses.dataclass(frozen=True)
class WholeBatch:
    """The call of a capture as one process would make it.

    Attributes:
        rows: Of all ranks together; None where that is not known, and nothing is compared.
        may_be_alone: Where the model has no graph for any number of rows, one for ``rows`` alone
            will do.
        known: A ``Capture`` for any number of rows: it is returned where the model computes the
            same at ``rows``, and one for ``rows`` alone where it does not.
    """

    rows: int | None = None
    may_be_alone: bool = False
    known: object = None


#: Nothing is known of the call but its own rows.
UNKNOWN = WholeBatch()


@dataclasses.dataclass(frozen=True)
class Alone:
    """Why a capture is for one number of rows alone.

    Attributes:
        rows: Of all ranks together.
        why: How the model computes otherwise at other numbers.
    """

    rows: int
    why: str

    def __str__(self):
        return (
            f"forward() decides in Python by the number of rows, so this graph is for {self.rows} "
            "on all ranks together, and another number is captured when it first comes: "
            f"{self.why.splitlines()[0]}"
        )


@dataclasses.dataclass(frozen=True)
class Traced:
    """What a front end makes of a call.

    Attributes:
        graph: ``_C.ir.Graph``.
        objects: What it refers to.
        shape: What the model returns, without its tensors.
    """

    graph: object
    objects: list
    shape: object

    def difference(self, other, rows) -> str:
        """How ``other`` computes otherwise at a number of rows; empty where it does not."""
        mine = pytree.at_rows(self.shape, rows)
        if found := pytree.difference(mine, pytree.at_rows(other.shape, rows), "the result"):
            return found
        return _C.ir.match(self._named(rows), other._named(rows), False).difference

    def _named(self, rows):
        inputs, outputs = self.graph.inputs, self.graph.outputs
        objects = [
            "left by another call" if isinstance(each, FakeTensor) else describe(each)
            for each in self.objects
        ]
        return _C.ir.NamedGraph(
            _C.ir.at_rows(self.graph, rows),
            [*map(str, range(len(inputs)))],
            [*map(str, range(len(outputs)))],
            objects,
        )
