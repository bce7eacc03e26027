"""``masked_scatter``: elements of one tensor in the places that a mask marks in another, as
features of images in the places that a text holds free for them.

It takes them one after the other, so what a row gets depends on how many places the rows before it
have. A share of the batch gives the same as the whole where it has as many places as elements. So
each share looks, and another number is an error.
"""

import torch

from pyrannc.capture.replaced import replaced
from pyrannc.capture.torch_private import FakeTensor
from pyrannc.errors import RaNNCError


class Placed(torch.autograd.Function):
    """``tensor.masked_scatter(mask, source)`` where all of ``source`` is used."""

    @staticmethod
    def forward(ctx, tensor, mask, source):
        mask = mask.expand_as(tensor)
        ctx.save_for_backward(mask)
        ctx.sizes = source.shape
        if not isinstance(tensor, FakeTensor) and (places := int(mask.sum())) != source.numel():
            raise RaNNCError(
                f"masked_scatter(): a part of the batch has {places} places for {source.numel()} "
                "elements.\n  Each row needs as many places (placeholders of images, say) as the "
                "same row of what is put there has elements: rows that share their images out "
                "otherwise cannot be computed apart."
            )
        return tensor.masked_scatter(mask, source)

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient.masked_fill(mask, 0), None, gradient[mask].reshape(ctx.sizes)


def checked(session):
    """While a model is traced, its masked_scatter() is :class:`Placed`."""
    scatter = FakeTensor.masked_scatter

    def masked_scatter(tensor, mask, source):
        if not session.here():
            return scatter(tensor, mask, source)
        return Placed.apply(tensor, mask, source)

    return replaced(FakeTensor, masked_scatter=masked_scatter)
