"""Sampled tokens as one process draws them for the rows of all ranks."""

import contextlib

import torch

from pyrannc.capture.replaced import in_this_thread, replaced


class WholeDraws:
    """Draws for the rows of all ranks, of which this one takes its own.

    Where the generators of all ranks have the same state (``torch.manual_seed(0)`` on each), each
    token is that of one process with all rows.
    """

    def __init__(self):
        self._rows, self._first = 0, 0
        self._last = None  # vocabulary, number of samples, and how, of the last draw

    def of(self, all_rows: list[int], rank: int) -> None:
        """``all_rows``: of each rank."""
        self._rows, self._first = sum(all_rows), sum(all_rows[:rank])

    @contextlib.contextmanager
    def instead_of_own(self):
        """Inside, ``torch.multinomial`` draws so for this thread."""
        original = torch.multinomial

        def multinomial(weights, num_samples, *args, **kwargs):
            if weights.dim() != 2:
                return original(weights, num_samples, *args, **kwargs)
            self._last = (weights.shape[1], num_samples, args, kwargs)
            whole = weights.new_ones(self._rows, weights.shape[1])
            mine = slice(self._first, self._first + weights.shape[0])
            whole[mine] = weights
            return original(whole, num_samples, *args, **kwargs)[mine]

        self._original = original
        with replaced(torch, multinomial=in_this_thread(multinomial, original)):
            yield

    def skip(self) -> None:
        """Draws as the other ranks do, for a rank that needs no token any more."""
        if self._last is not None:
            width, num_samples, args, kwargs = self._last
            self._original(torch.ones(self._rows, width), num_samples, *args, **kwargs)
