"""Which devices this machine has, and how ranks on them would exchange messages."""

from pathlib import Path

from pyrannc.errors import CommError

DRIVER = Path("/proc/driver/nvidia/version")


def examine(rows, problems) -> None:
    """Adds rows on devices, driver, CUDA and NCCL, and what to do where one of them is missing.

    No device is no problem, with whatever build of torch: ranks then compute on the CPU.
    """
    import torch

    from pyrannc import _C
    from pyrannc.config import Config

    config = Config.from_env()
    kind = torch.accelerator.current_accelerator()
    count = torch.accelerator.device_count() if kind is not None else 0
    cuda = torch.version.cuda
    rows.append(("CUDA of torch", cuda or "none: this torch is for the CPU"))
    found = driver()
    rows.append(("driver", found or "none"))
    rows.append(("devices", _names(kind, count) if count else "none: ranks compute on the CPU"))
    nccl, fix = _nccl(_C, config.nccl_library)
    rows.append(("NCCL", nccl))
    rows.append(("messages between ranks", _transport(kind, count, not fix, config)))
    if found and not cuda:
        problems.append(
            "there is a driver for NVIDIA's devices, but this torch is for the CPU: install its "
            "build for CUDA, and build pyrannc again"
        )
    elif found and not count:
        problems.append(
            f"there is a driver, and torch is for CUDA {cuda}, but torch finds no device: see "
            "CUDA_VISIBLE_DEVICES, and whether the driver is new enough for it (nvidia-smi)"
        )
    if fix and (config.device_transport == "nccl" or config.nccl_library or count > 1):
        problems.append(fix)


def driver() -> str:
    """The version of NVIDIA's driver, in its own words; empty where there is none."""
    lines = DRIVER.read_text().splitlines() if DRIVER.is_file() else []
    return lines[0].removeprefix("NVRM version:").strip() if lines else ""


def _names(kind, count) -> str:
    import torch

    from pyrannc.job import device_facts

    devices = [torch.device(kind.type, index) for index in range(count)]
    return ", ".join(
        f"{device} {device_facts.name(device)} ({device_facts.total_bytes(device) / 2**30:.1f} GiB)"
        for device in devices
    )


def _nccl(extension, file) -> tuple[str, str]:
    """Version and file, and what to do where there is none."""
    if not extension.comm.nccl_available():
        return "not in this build (-DRANNC_NCCL=OFF)", "build pyrannc without -DRANNC_NCCL=OFF"
    try:
        found, version = extension.comm.find_nccl(file)
    except CommError as error:
        return "none", str(error)
    return f"{extension.comm.nccl_version_text(version)} ({found})", ""


def _transport(kind, count, has_nccl, config) -> str:
    if not count:
        return "memory of the host, by MPI"
    if config.device_transport != "auto":
        return f"{config.device_transport}, as device_transport says"
    if kind.type != "cuda" and not config.nccl_library:
        return f"staged through pinned memory: NCCL is not for {kind.type}"
    if not has_nccl:
        return "staged through pinned memory: there is no NCCL"
    return "nccl, where every rank has a device of its own; else staged through pinned memory"
