"""The device that a part runs on: a GPU, or the stand-in where the scripts themselves are tried."""

import os

import torch

NAME = os.environ.get("TEST_DEVICE", "cuda")
SMALL = bool(os.environ.get("TEST_SMALL"))


def start(*, deterministic=True, memory_bytes=1 << 30):
    """This rank's device, current: with deterministic algorithms and without TF32, for what is
    compared, or as users have it, for what is timed.

    Where CUDA has no deterministic algorithm torch warns and takes another one.
    """
    number = 0
    if NAME == "standin":
        import standin

        standin.start(memory_bytes=memory_bytes, delay_us=0)
        torch.set_num_threads(1)
    else:
        number = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0)) % torch.cuda.device_count()
    if deterministic:
        make_deterministic()
    torch.accelerator.set_device_index(number)
    return torch.device(NAME, number)


def make_deterministic():
    if NAME != "standin":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False


def module():
    """Of torch, with streams, events and names of devices: torch.cuda, or its like."""
    return torch.get_device_module(NAME)


def name():
    return torch.cuda.get_device_name() if NAME == "cuda" else "stand-in"


def memory():
    """What counts memory: memory_stats(), max_memory_allocated(), empty_cache(), ..."""
    return torch.cuda if NAME == "cuda" else torch.accelerator


def used_bytes(place):
    """What the driver has given out, to this process and others."""
    asked = torch.cuda.mem_get_info if NAME == "cuda" else torch.accelerator.get_memory_info
    free, total = asked(place)
    return total - free


def new_stream(place):
    return torch.cuda.Stream(place) if NAME == "cuda" else torch.Stream(device=place)


def handle_of(stream):
    """What libraries of the device know a stream by."""
    return stream.cuda_stream if NAME == "cuda" else stream.native_handle
