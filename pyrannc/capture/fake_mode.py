"""FakeTensors, also where torch's own kernels for them refuse what the real ones take."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_GROUPED_MM = torch.ops.aten._grouped_mm.default
_ALIGNMENT_BYTES = 16


class FakeMode(FakeTensorMode):
    """A FakeTensorMode in which ``aten::_grouped_mm`` takes what its kernel on the CPU takes:
    torch (2.13) lets only bfloat16 pass, so that no mixture of experts could be traced."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not _GROUPED_MM:
            return super().__torch_dispatch__(func, types, args, kwargs)
        with self:
            return _grouped_mm(*args, **(kwargs or {}))


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """What the operator returns, empty: its rows begin at multiples of 16 bytes."""
    if a.dim() == 2 and b.dim() == 2:
        sizes = [offs.size(0), a.size(0), b.size(1)]
    elif a.dim() == 2 or b.dim() == 2:
        sizes = [a.size(-2), b.size(-1)]
    else:
        sizes = [a.size(0), a.size(1), b.size(2)]
    dtype = out_dtype or a.dtype
    per_line = _ALIGNMENT_BYTES // dtype.itemsize
    line = -(-sizes[-1] // per_line) * per_line
    strides = [sizes[1] * line, line, 1][-len(sizes) :]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=a.device)
