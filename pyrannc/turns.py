"""What all ranks do together, agreed on before anything else is sent."""

import dataclasses

import torch

from pyrannc.errors import RaNNCError

(
    _FORWARD, _FORWARD_ONLY, _FORWARD_NO_SYNC, _BACKWARD, _BACKWARD_KEPT, _ALL_REDUCE, _KINDS,
) = range(7)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Turn:
    """A forward pass that all ranks have agreed on."""

    number: int
    local_rows: list  # [rank]
    no_sync: bool


class Turns:
    """The calls of one deployment, in the order in which every rank makes them.

    Each begins with one message of 32 bytes to all ranks: how many rows this rank has, and what it
    is about to do. Where ranks are about to do different things, every one of them raises an error
    that says so, instead of waiting for messages that never come.
    """

    def __init__(self, world, kept):
        self._world, self._kept = world, kept
        self._calls = 0

    def forward(self, rows, kind, no_sync, describe) -> Turn:
        """Agrees on the next forward pass.

        Args:
            rows: Of this rank's batch.
            kind: Number of the capture, 0 for a new one.
            no_sync: Whether its backward leaves the gradients of the replicas unsummed.
            describe: Function that says in words what is called, for the error.
        """
        number = self._calls
        self._calls += 1
        grad = torch.is_grad_enabled()
        what, how = _FORWARD_ONLY, "without grad"
        if grad and no_sync:
            what, how = _FORWARD_NO_SYNC, "with grad, under no_sync()"
        elif grad:
            what, how = _FORWARD, "with grad"
        all_rows, same = self._agree(rows, what, number, kind)
        if not same:
            self._fail(f"forward pass {number} {how}, {describe()}")
        if not any(all_rows):
            raise RaNNCError("the batch has no rows on any rank, so nothing can run")
        return Turn(number, all_rows, no_sync)

    def backward(self, number, keep_graph) -> None:
        """Agrees on the backward of a forward pass, where that communicates."""
        if not self._agree(0, _BACKWARD_KEPT if keep_graph else _BACKWARD, number, 0)[1]:
            how = " with retain_graph=True" if keep_graph else ""
            self._fail(f"backward of forward pass {number}{how}")

    def all_reduce(self) -> None:
        """Agrees on summing the gradients that are kept."""
        if not self._agree(0, _ALL_REDUCE, 0, 0)[1]:
            self._fail("allreduce_grads()")

    def _agree(self, rows, what, number, kind):
        # Without gradients, those that are kept do not matter.
        kept = 0 if what == _FORWARD_ONLY else self._kept.passes
        return self._world.agree(rows, what + _KINDS * kept, number, kind)

    def _fail(self, mine):
        if self._kept.passes:
            mine += f", after {self._kept.passes} backward passes under no_sync()"
        ranks = {}
        for rank, text in enumerate(self._world.all_gather(mine.encode())):
            ranks.setdefault(text.decode(), []).append(rank)
        lines = [f"\n  {_names(ranks)}: {text}" for text, ranks in ranks.items()]
        raise RaNNCError(
            f"the ranks do not do the same:{''.join(lines)}\n"
            "  Every rank calls the model, and backward, in the same order, with the same modes, "
            "shapes and constants; only the number of rows may differ."
        )


def _names(ranks) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
