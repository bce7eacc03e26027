"""FakeTensors, also where torch's own kernels for them refuse what the real ones take."""

import torch

from pyrannc.capture.torch_favours import FAKE_KERNELS
from pyrannc.capture.torch_private import FakeTensorMode
from pyrannc.errors import TraceError


class FakeMode(FakeTensorMode):
    """A FakeTensorMode with kernels of ours for some operators.

    ``user_caches``: of functions that may keep its tensors; see ``attributes.caches``.
    ``overwritten``: what `x.data` was, of each `x` that has been given another one.
    """

    user_caches = None
    overwritten = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.overwritten:
            self._refuse_overwritten(args, kwargs)
        kernel = FAKE_KERNELS.get(func)
        if kernel is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            return kernel(*args, **(kwargs or {}))

    def _refuse_overwritten(self, args, kwargs):
        given = (*args, *(kwargs or {}).values())
        used = [each for item in given for each in (item if isinstance(item, list) else [item])]
        if any(each is old for old in self.overwritten for each in used):
            raise TraceError(
                "forward() puts another tensor into the .data of one, and then uses the one that "
                "was there before, which a captured model has overwritten.\n  Keep a copy of what "
                "is used later: x.data.clone()."
            )


def fake_like(tensor, places):
    """A FakeTensor like a parameter or buffer, on its device or where it moves; what is meta counts
    as the host's. What its rank has released says where the model is.

    Called under a FakeTensorMode. Not its ``from_tensor``, which keeps a weak reference to the
    tensor, and a tensor with weak references cannot be released later.
    """
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    if places and places.moves:
        device = places.device
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)
