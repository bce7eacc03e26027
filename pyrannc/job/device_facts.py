"""What an accelerator's backend says of a device. Backends of torch need not say any of it."""

import torch


def name(device) -> str:
    """In the words of its backend, as NVIDIA H100; empty where it has none."""
    return getattr(_properties(device), "name", "")


def uuid(device) -> str | None:
    """What no other device in the world is called; None where the backend has no such names."""
    found = getattr(_properties(device), "uuid", None)
    return str(found) if found else None


def total_bytes(device) -> int:
    """Of its memory; 0 where the backend does not say."""
    if total := getattr(_properties(device), "total_memory", 0):
        return total
    known = memory(device)
    return known[1] if known else 0


def cache_bytes(device) -> int:
    """Of its largest cache; 0 where the backend does not say."""
    return getattr(_properties(device), "L2_cache_size", 0)


def memory(device) -> tuple[int, int] | None:
    """Bytes that are free there, and all of them; None where the backend does not say."""
    try:
        return torch.accelerator.get_memory_info(device)
    except (RuntimeError, NotImplementedError):  # its allocator is none that could be asked
        return None


def allocated_bytes(device) -> int | None:
    """Of the tensors of this process there; None where the backend does not count them."""
    try:
        return torch.accelerator.memory_allocated(device)
    except (RuntimeError, NotImplementedError):
        return None


def float32_precisions() -> list[str]:
    """With what precision accelerators compute products, convolutions and recurrent layers of
    float32: "ieee", "tf32" or "bf16".

    The older switches (allow_tf32) show here, too; where a script sets these, those cannot be read.
    """
    backends = torch.backends
    switches = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
    return [switch.fp32_precision for switch in switches]


def other_precisions() -> list[bool]:
    """Whether products of float16 and of bfloat16 may be added up in these."""
    matmul = torch.backends.cuda.matmul
    return [
        bool(matmul.allow_fp16_reduced_precision_reduction),
        bool(matmul.allow_bf16_reduced_precision_reduction),
    ]


def attention_kernels() -> list[bool]:
    """Which of them torch may choose: flash, memory-efficient, cuDNN's, and plain products."""
    cuda = torch.backends.cuda
    asked = (
        cuda.flash_sdp_enabled,
        cuda.mem_efficient_sdp_enabled,
        cuda.cudnn_sdp_enabled,
        cuda.math_sdp_enabled,
    )
    return [each() for each in asked]


def _properties(device):
    device = torch.device(device)
    module = torch.get_device_module(device.type)
    asked = getattr(module, "get_device_properties", None)
    return None if asked is None else asked(device)
