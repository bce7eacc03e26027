"""What all ranks do together, agreed on before anything else is sent."""

import dataclasses

import torch

from pyrannc.errors import RaNNCError

_FORWARD, _FORWARD_ONLY, _BACKWARD = range(3)


@dataclasses.dataclass(frozen=True)
class Turn:
    """A forward pass that all ranks have agreed on."""

    number: int
    local_rows: list  # [rank]


class Turns:
    """The calls of one deployment, in the order in which every rank makes them.

    Each begins with one message of 32 bytes to all ranks: how many rows this rank has, and what it
    is about to do. Where ranks are about to do different things, every one of them raises an error
    that says so, instead of waiting for messages that never come.
    """

    def __init__(self, world):
        self._world = world
        self._calls = 0

    def forward(self, rows, kind, describe) -> Turn:
        """Agrees on the next forward pass.

        Args:
            rows: Of this rank's batch.
            kind: Number of the capture, 0 for a new one.
            describe: Function that says in words what is called, for the error.
        """
        number = self._calls
        self._calls += 1
        grad = torch.is_grad_enabled()
        what = _FORWARD if grad else _FORWARD_ONLY
        all_rows, same = self._world.agree(rows, what, number, kind)
        if not same:
            self._fail(f"forward pass {number} {'with' if grad else 'without'} grad, {describe()}")
        if not any(all_rows):
            raise RaNNCError("the batch has no rows on any rank, so nothing can run")
        return Turn(number, all_rows)

    def backward(self, number) -> None:
        """Agrees on the backward of a forward pass, where that communicates."""
        _, same = self._world.agree(0, _BACKWARD, number, 0)
        if not same:
            self._fail(f"backward of forward pass {number}")

    def _fail(self, mine):
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
