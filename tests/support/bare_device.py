"""torch's device "bare": the least that a backend has to offer (tests/accelerator/bare).

``start()`` loads it into this process, where no other accelerator may be. It computes at once, on
the host; nothing says how much memory it has, what it is called, or what its UUID is.
"""

import os
import types
from pathlib import Path

import torch

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "tests" / "accelerator" / "libbare.so"


def start(lacks=()):
    """Makes the devices "bare:0" and "bare:1"; once in a process.

    ``lacks``: of "events", "times" of events, "streams" beside the default one, "waiting" for a
    stream or a device, "bfloat16", "float64", and "generator". Without the last the module has no
    states of it, either.
    """
    os.environ["BARE_LACKS"] = " ".join(lacks)
    torch.ops.load_library(str(LIBRARY))
    torch.utils.rename_privateuse1_backend("bare")
    torch._register_device_module("bare", _module("generator" not in lacks))
    torch.utils.generate_methods_for_privateuse1_backend()


def _module(draws):
    """As ``torch.cuda`` for CUDA, with what torch itself asks of it."""
    module = types.ModuleType("torch.bare")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 2  # torch.accelerator asks the module
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.synchronize = torch.accelerator.synchronize
    module.device = lambda device: torch.accelerator.device_index(torch.device(device).index)
    if not draws:
        return module
    # Its operators draw from the host's generator.
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device="bare": torch.get_rng_state()
    module.set_rng_state = lambda state, device="bare": torch.set_rng_state(state)
    return module


def begin(device, lacks=()):
    """What a program of ranks begins with, each of which computes on ``device``, an expression."""
    return f"""
import copy

import bare_device
import torch

import pyrannc
from pyrannc import launch

world = launch.world()
rank, size = world.rank, world.size
if not hasattr(torch, "bare"):
    bare_device.start(lacks={lacks})
torch.bare.set_device({device})
TOLERANCE = {{"rtol": 1e-5, "atol": 1e-5}}
"""
