"""The device that a part runs on: a GPU, or the stand-in where the scripts themselves are tried."""

import os

import torch

NAME = os.environ.get("TEST_DEVICE", "cuda")


def start(*, deterministic=True):
    """This rank's device, current: with deterministic algorithms and without TF32, for what is
    compared, or as users have it, for what is timed."""
    number = 0
    if NAME == "standin":
        import standin

        standin.start(delay_us=0)
        torch.set_num_threads(1)
    else:
        number = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0)) % torch.cuda.device_count()
    if NAME != "standin" and deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    torch.accelerator.set_device_index(number)
    return torch.device(NAME, number)


def new_stream(device):
    return torch.Stream(device=device)


def handle_of(stream):
    """What libraries of the device know a stream by."""
    return stream.native_handle if NAME == "standin" else torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    ).cuda_stream  # fmt: skip
