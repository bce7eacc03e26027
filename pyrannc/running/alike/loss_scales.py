"""Incoming gradients of what is one number of the whole batch, such as the loss, over all ranks.

Such a gradient scales all that a call's backward gives, so it has to be the same on every rank.
Where backward communicates it is compared before; else with the next thing that all ranks do. Of
an accelerator it comes to the host by itself meanwhile, and is compared in the call after the next
one, or with what is no call before: it comes when its step has been computed, and who waited for
that in the next call would let the device wait for what that call has to issue.
"""

import hashlib
import json
import math

from pyrannc.loop.coming_to_host import ComingToHost

#: How far the scales of a loss on two ranks may differ, relatively: the same arithmetic on
#: processors of two kinds may differ in its last bits. And the largest scale from which a float16
#: backward starts.
#: tuned by: safety margins: above what rounding does, and below what overflows.
#: without it: ranks of two kinds of processors refuse to train together; a larger seed makes
#: float16 gradients overflow.
EQUAL_SCALES = 1e-5
LARGEST_SEED = 2.0**24


class LossScales:
    """The scales that this rank has seen since the ranks last compared theirs."""

    def __init__(self):
        self._found = {}
        self._coming = []  # number of the forward pass, name, and ComingToHost

    def add(self, number, names, gradients):
        """Notes the incoming gradients of one backward.

        Args:
            number: Of the forward pass.
            names: Of the call's outputs; the same for an output that is returned twice, and None
                for one that is not a number of the whole batch.
            gradients: Of the outputs; None where none comes in.
        """
        sums = {}
        for name, gradient in zip(names, gradients, strict=True):
            if name is not None and gradient is not None:
                sums[name] = gradient + sums[name] if name in sums else gradient
        for name, value in sums.items():
            name = f"{name} of forward pass {number}"
            if value.device.type == "cpu":
                self._note(name, value.item())
            else:
                self._coming.append((number, name, ComingToHost(value)))

    def _note(self, name, value):
        # Once each: ranks ask as often as they have parameters (torch.autograd.grad).
        self._found.setdefault(name, set()).add(repr(value))

    def take(self, passes=math.inf) -> dict:
        """What has been noted, by output: its gradients in order, as text.

        Args:
            passes: Those that are on their way from an accelerator are waited for where they are of
                the first so many forward passes, and left for later where they are not.
        """
        if not self._coming and not self._found:
            return {}
        for number, name, each in self._coming:
            if number < passes:
                self._note(name, each.value().item())
        self._coming = [each for each in self._coming if each[0] >= passes]
        found, self._found = self._found, {}
        return {name: sorted(values, key=float) for name, values in sorted(found.items())}


def loss_seed(scales, before) -> float:
    """What the next backward of a loss starts from, so that float16 gradients neither vanish nor
    overflow before the scale comes in: the last scale, rounded down to a power of two, from which
    dividing is exact. ``before`` if there is none.

    Args:
        scales: What ``LossScales.take()`` has returned, [rank].
    """
    if not any(scales):
        return before
    sizes = [abs(float(value)) for mine in scales for values in mine.values() for value in values]
    sizes = [size for size in sizes if math.isfinite(size)]
    if not sizes:
        return before
    return 2.0 ** math.floor(math.log2(min(max(*sizes, 1.0), LARGEST_SEED)))


def fingerprint(kind, steps, settings, scales) -> int:
    """64 bits of ``kind``, in JSON's types, a number, texts, and what ``LossScales.take()``
    returned."""
    if not scales and not settings and isinstance(kind, int) and kind < 2**16:
        return kind + (steps << 16)
    text = json.dumps([kind, steps, settings, scales])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def first_difference(scales, peers) -> str | None:
    """An output whose incoming gradients differ between ranks.

    A rank without one counts only where it shares parameters with a rank that has one: gradients
    would be those of some replicas alone.

    Args:
        scales: What ``LossScales.take()`` has returned, [rank].
        peers: The ranks that share a parameter with it, [rank].
    """
    for name in sorted(set().union(*scales)):
        values = [[float(value) for value in mine.get(name, ())] for mine in scales]
        have = [rank for rank, mine in enumerate(values) if mine]
        if not all(_close(values[rank], values[have[0]]) for rank in have):
            return name
        if any(not values[peer] for rank in have for peer in peers[rank]):
            return name
    return None


def _close(some, others):
    return len(some) == len(others) and all(
        math.isclose(a, b, rel_tol=EQUAL_SCALES) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(some, others, strict=True)
    )
