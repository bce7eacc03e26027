"""FakeTensors, also where torch's own kernels for them refuse what the real ones take."""

from pyrannc.capture.torch_favours import FAKE_KERNELS
from pyrannc.capture.torch_private import FakeTensorMode


class FakeMode(FakeTensorMode):
    """A FakeTensorMode with kernels of ours for some operators.

    ``user_caches``: of functions that may keep its tensors; see ``attributes.caches``.
    """

    user_caches = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kernel = FAKE_KERNELS.get(func)
        if kernel is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            return kernel(*args, **(kwargs or {}))
