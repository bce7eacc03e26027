"""Numbers of an accelerator that come to the host by themselves, so that nobody waits for them."""

import torch

from pyrannc import _C


class ComingToHost:
    """A copy in pinned memory of the host, on its way; ready when its device gets there."""

    def __init__(self, numbers: torch.Tensor):
        numbers = numbers.detach().double()
        try:
            self._host = torch.empty(numbers.shape, dtype=torch.float64, pin_memory=True)
        except RuntimeError:  # there is none; the copy is waited for
            self._host = torch.empty(numbers.shape, dtype=torch.float64)
        self._there = None
        if not _C.runtime.backend_of(str(numbers.device)).events:
            self._host.copy_(numbers)  # nothing would say that it is there
            return
        self._host.copy_(numbers, non_blocking=True)
        self._there = torch.Event(numbers.device)
        self._there.record(torch.accelerator.current_stream(numbers.device))

    def value(self) -> torch.Tensor:
        """Waits for it where it has not come yet."""
        if self._there is not None and not self._there.query():
            self._there.synchronize()
        return self._host
