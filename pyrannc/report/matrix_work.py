"""How much of what its devices could compute a step uses."""

import torch

from pyrannc import _C

#: What torch calls a device, and its name in docs/device-models.md; the first that is in it counts.
NAMES = [
    ("H100 PCIe", "h100-pcie"),
    ("H100", "h100"),
    ("H200", "h200"),
    ("B200", "b200"),
    ("A100", "a100"),
    ("V100", "v100"),
    ("L40S", "l40s"),
    ("NVIDIA L4", "l4"),
    ("NVIDIA A10", "a10"),
    ("MI300X", "mi300x"),
]


def known(name: str) -> str | None:
    """The catalogue's name of a device that torch calls ``name``; None of others."""
    words = name.replace("-", " ").split()
    return next((ours for theirs, ours in NAMES if _holds(words, theirs.split())), None)


def _holds(words, wanted) -> bool:
    places = range(len(words) - len(wanted) + 1)
    return any(words[place : place + len(wanted)] == wanted for place in places)


def of_step(graph, device: torch.device, rows: int) -> tuple[float, float | None]:
    """Floating-point operations of a training step in matrix products, convolutions and attention,
    without what recompute repeats; and the seconds that they would take on one device at the peaks
    of its data sheet, None where the device is not in the catalogue (a CPU never is).

    Args:
        graph: The captured one, ``_C.ir.Graph``.
        rows: Of the global batch.
    """
    name = known(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    work = _C.cost.training_work(graph, _C.cost.device_model(name or "cpu"), rows)
    return work.flops, work.peak_s if name else None
