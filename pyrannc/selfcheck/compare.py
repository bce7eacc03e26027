"""Two runs of one model, tensor by tensor, in units of the largest entry of their kind."""

import dataclasses
import math

import torch

from pyrannc import _C, log
from pyrannc.job import device_facts

# Largest error allowed, as a share of the largest entry of that kind in the whole model, by the
# coarsest dtype in the graph. About a thousand roundings: a graph may take another kernel than
# eager (HF builds a mask when traced), and parts of a batch sum in another order; a wrong graph is
# off by orders more. A share of the kind's largest entry, not the tensor's, because gradients that
# are truly zero (BERT's key bias) are nothing but rounding.
TOLERANCE = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 1e-2,
    "bfloat16": 3e-2,  # 8 bits of mantissa, float16 has 11
}
_HOST = torch.device("cpu")
# Numbers this large fill masks; they must be equal, and do not count as the largest entry.
FILL = 1e9


@dataclasses.dataclass
class Difference:
    """The first thing in which two runs differ."""

    kind: str
    name: str
    error: float
    """Largest error as a share of the largest entry of the kind."""
    tolerance: float
    module: str = ""
    source: str = ""
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.kind}: '{self.name}' is off by {self.error:.1e} of the largest entry "
        text += f"(allowed: {self.tolerance:.0e})"
        if self.note:
            text += f"; {self.note}"
        if self.source:
            text += f"; first seen in module '{self.module}', {self.source}"
        return text


def tolerance(graph, device=_HOST) -> float:
    """What :data:`TOLERANCE` allows for the coarsest dtype that the graph computes in.

    An accelerator, ``device``, may multiply float32 matrices with the 11 bits of TF32.
    """
    dtypes = set(_C.ir.dtypes(graph))
    if device.type != "cpu" and "float32" in dtypes and rounds_float32():
        dtypes.add("float16")
    return max((TOLERANCE[name] for name in dtypes if name in TOLERANCE), default=0.0)


def rounds_float32() -> bool:
    """Whether products and convolutions of float32 may be computed with fewer bits on an
    accelerator."""
    return any(each in ("tf32", "bf16") for each in device_facts.float32_precisions())


def tensors(kind: str, expected: dict, found: dict, allowed: float):
    """The largest error, and the first difference or None.

    Floating tensors may be off by ``allowed`` times the largest expected entry of all; everything
    else must be equal. ``expected`` and ``found`` hold tensors by name.
    """
    if expected.keys() != found.keys():
        names = sorted(expected.keys() ^ found.keys())
        return math.inf, Difference(kind, names[0], math.inf, allowed, note="one side lacks it")
    scale = max((largest_entry(item) for item in expected.values()), default=0.0) or 1.0
    if _C.util.log_enabled(_C.util.Level.debug, "deploy"):
        _tell_of_fills(kind, expected)
    worst, first = 0.0, None
    for name, item in expected.items():
        error, note = difference(item, found[name], scale)
        worst = max(worst, error)
        if error > allowed and first is None:
            first = Difference(kind, name, error, allowed, note=note)
    return worst, first


def _tell_of_fills(kind, items):
    filled = [
        name
        for name, item in items.items()
        if is_floating(item) and (item.detach().abs().double() >= FILL).any()
    ]
    if filled:
        log.debug(
            "deploy",
            f"guessed which {kind} have entries that fill masks, and do not count as the largest "
            f"({FILL:.0e} and more): {', '.join(filled)}",
        )


def is_floating(item) -> bool:
    return item.is_floating_point() or item.is_complex()


def largest_entry(item) -> float:
    """Over the finite entries of a floating tensor that fill no mask; else 0."""
    if not is_floating(item) or item.numel() == 0:
        return 0.0
    size = item.detach().abs().double()
    size = size[size < FILL]
    return size.max().item() if size.numel() else 0.0


def difference(expected, found, scale: float) -> tuple[float, str]:
    """Error of one item as a share of ``scale``, and a word on it when it is no rounding."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf, (
            f"{found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}"
        )
    if expected.numel() == 0:
        return 0.0, ""
    expected, found = expected.detach(), found.detach()
    if not is_floating(expected):
        differing = (expected != found).sum().item()
        return (math.inf, f"{differing} entries differ") if differing else (0.0, "")
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, found = expected.to(wide), found.to(wide)
    same = (expected == found) | (expected.isnan() & found.isnan())
    off = (expected - found).abs()[~same]
    if off.numel() == 0:
        return 0.0, ""
    if not off.isfinite().all():
        return math.inf, "NaN or infinity on one side only"
    return (off.max() / scale).item(), ""
