"""Keys and values of attention, kept from step to step of a generation on the ranks that use them.

A captured model asks for them by a call of :class:`KeepKeys`, a node of its stage's graph. It is
given the new ones, and returns all so far, so that none of them travels.
"""

import functools

import torch

from pyrannc.capture.torch_private import FakeTensor
from pyrannc.errors import RaNNCError

_stores = {}  # by the number of the model


class Store:
    """What this rank keeps, of one generation of one model."""

    def __init__(self):
        self._kept = {}  # (slot, rows) -> tensor [rows, heads, positions, width]

    def put(self, new, rows, positions, slot, length):
        """Writes ``new`` ``[rows, heads, steps, width]`` at ``positions`` ``[rows]`` and following
        ones; returns ``length`` positions ``[rows, heads, length, width]``, without a copy.

        Args:
            rows: Numbers of the rows in the whole batch, ``[rows]``.
            slot: Layer, and which of its tensors.
        """
        key = (slot, tuple(rows.tolist()))
        kept = self._kept.get(key)
        if kept is None:
            if bool((positions > 0).any()):
                raise RaNNCError(
                    f"keys of layer {slot // 2} are kept on another rank than the one that needs "
                    "them.\n  Call generate(use_cache=False)."
                )
            kept = new.new_zeros(0, 0, 0, 0)
        if kept.shape[2] < length:
            before = kept
            kept = new.new_zeros(new.shape[0], new.shape[1], length, new.shape[3])
            if before.numel():
                kept[:, :, : before.shape[2]] = before
            self._kept[key] = kept
        places = positions[:, None] + torch.arange(new.shape[2])
        places = places[:, None, :, None].expand_as(new)
        kept.scatter_(2, places, new)
        return kept[:, :, :length]


class KeepKeys(torch.autograd.Function):
    """``Store.put()`` of a model's store, given as its number."""

    @staticmethod
    def forward(ctx, new, rows, positions, model, slot, length):
        if isinstance(new, FakeTensor):  # while the model is captured
            return new.new_empty(new.shape[0], new.shape[1], length, new.shape[3])
        return _stores[model].put(new, rows, positions, slot, length)

    @staticmethod
    def backward(ctx, gradient):
        raise RaNNCError("a step of generate() has no backward: call it under no_grad()")


def begin(model: int) -> None:
    """Of a generation of the model with this number, on every rank."""
    _stores[model] = Store()


def end(model: int) -> None:
    _stores.pop(model, None)


@functools.cache
def cache_class():
    """The class that stands for the cache in arguments of the model: one of transformers' Cache."""
    from transformers.cache_utils import Cache

    class KeptKeys(Cache):
        """Its tensors are arguments of the captured model, all else is constant there."""

        def __init__(self, model, length=0, rows=None, positions=None):
            super().__init__(layers=[])
            self.model, self.length = model, length
            self.rows, self.positions = rows, positions

        def update(self, key_states, value_states, layer_idx, *args, **kwargs):
            def kept(states, slot):
                return KeepKeys.apply(
                    states, self.rows, self.positions, self.model, slot, self.length
                )

            return kept(key_states, 2 * layer_idx), kept(value_states, 2 * layer_idx + 1)

        def get_seq_length(self, layer_idx=0):
            return 0  # what depends on it, positions and mask, is given

        def get_mask_sizes(self, query_length, layer_idx=0):
            return self.length, 0

    return KeptKeys
