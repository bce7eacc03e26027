"""The random numbers of ``deterministic_dropout``, written from docs/algorithms.md alone.

With :class:`KeyedMasks`, a model that knows nothing of RaNNC drops what it does under any plan.
"""

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

NO_SAMPLE = 2**64 - 1
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter, key):
    """One block of Philox4x32-10, written from the paper; words may be arrays of uint64."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> HALF) ^ b ^ k0, second & LOW, (first >> HALF) ^ d ^ k1, first & LOW,
        )  # fmt: skip
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & LOW, (k1 + np.uint64(0xBB67AE85)) & LOW
    return a, b, c, d


def halves(number):
    number = np.asarray(number, dtype=np.uint64)
    return number & LOW, number >> HALF


def words(seed, step, node, samples, count):
    """``count`` words of 32 bits for each of ``samples``, as an array of two dimensions."""
    name = 0xCBF29CE484222325
    for letter in node.encode():
        name = (name ^ letter) * 0x100000001B3 % 2**64
    stream = philox((*halves(step), *halves(name)), halves(seed))[:2]
    blocks = np.arange(-(-count // 4), dtype=np.uint64)[None, :]
    samples = np.asarray(samples, dtype=np.uint64)[:, None]
    return np.stack(
        np.broadcast_arrays(*philox((*halves(blocks), *halves(samples)), stream)), axis=2
    ).reshape(len(samples), -1)[:, :count]


class KeyedMasks(TorchDispatchMode):
    """Around the forward of a model whose captured graph is ``graph``, on the rows ``samples``.

    Below autograd, each dropout of torch, also the one inside attention, asks ``bernoulli_`` for
    its mask. The n-th mask is that of the n-th operator of the graph that draws.
    """

    def __init__(self, graph, seed, step, samples):
        super().__init__()
        self.seed, self.step, self.samples = seed, step, np.asarray(samples, dtype=np.uint64)
        self.drawing = iter(
            [
                (node, graph.values[node.outputs[0]], probability)
                for index, node in enumerate(graph.nodes)
                if "dropout" in node.op
                for _, probability, training in [graph.arguments(index)]
                if training and probability > 0
            ]
        )

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        if operator is torch.ops.aten.bernoulli_.float:
            return arguments[0].copy_(self.mask(*next(self.drawing), arguments[0].shape))
        return operator(*arguments, **(named or {}))

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        assert error is not None or not list(self.drawing), "operators that have drawn nothing"

    def mask(self, node, value, probability, shape):
        """Ones for what is kept."""
        if value.rows.kind != "apart":
            drawn = words(self.seed, self.step, node.name, [NO_SAMPLE], shape.numel())
        else:
            dim, outer, inner = value.rows.dim, value.rows.outer, value.rows.inner
            samples = len(self.samples)
            assert shape[dim] == outer * samples * inner, (node.name, shape, value.rows)
            each = [*shape[:dim], outer, inner, *shape[dim + 1 :]]
            drawn = words(
                self.seed, self.step, node.name, self.samples, shape.numel() // samples
            ).reshape(samples, *each)
            drawn = np.moveaxis(drawn, 0, dim + 1)
        kept = drawn >= np.uint64(round(probability * 2**32))
        return torch.from_numpy(np.ascontiguousarray(kept.reshape(shape)))
