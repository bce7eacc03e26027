"""A second accelerator for tests: torch's device "standin", whose work is done by threads, late.

``start()`` loads it (tests/accelerator) into this process. Its devices do what the CPU does, to
the bit, but as a GPU would: when a call returns, nothing may be done yet; streams, events and the
allocator behave as CUDA's; and memory is out of the host's reach, so that reading a tensor's
pointer ends the process. No time that it takes says anything about a GPU.

The module is also ``torch.standin``, as ``torch.cuda`` is that of "cuda".
"""

import atexit
import ctypes
import os
import random
import struct
import types
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import library as operators

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(
    os.environ.get("STANDIN_LIBRARY", ROOT / "build" / "tests" / "accelerator" / "libstandin.so")
)
# What can be told to fail; the order is that of Fault in tests/accelerator/machine/faults.h.
FAULTS = ("allocation", "copy", "pinned")
CACHE_BYTES = 1 << 20  # what it says of a cache; it has none

_library = None
_devices = 0


def built():
    """Whether the library is there: it is built with the tests (``-DRANNC_TESTS=ON``)."""
    return LIBRARY.exists()


def start(devices=1, memory_bytes=1 << 30, delay_us=50.0, seed=None):
    """Makes ``devices`` devices "standin:0", ... of ``memory_bytes`` bytes each; once in a process.

    Before each kernel its stream waits: before half of them not at all, before the others for a
    random time, ``delay_us`` microseconds on the average of all. The seed of these times is
    printed; the environment's ``STANDIN_SEED`` repeats it.
    """
    global _library, _devices
    if _library is not None:
        raise RuntimeError("the stand-in devices have been started before")
    if seed is None:
        seed = int(os.environ.get("STANDIN_SEED", random.SystemRandom().getrandbits(32)))
    print(f"stand-in devices: {devices}, STANDIN_SEED={seed}", flush=True)
    torch.ops.load_library(str(LIBRARY))
    _library = _declare(ctypes.CDLL(str(LIBRARY)))
    _library.standin_start(devices, memory_bytes, delay_us, seed)
    _devices = devices
    atexit.register(_library.standin_stop)  # before what its threads use goes away
    import standin  # by this name, whoever has imported it

    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", standin)
    torch.utils.generate_methods_for_privateuse1_backend()


def _declare(library):
    c_int, c_double, c_uint64, c_void_p = (
        ctypes.c_int,
        ctypes.c_double,
        ctypes.c_uint64,
        ctypes.c_void_p,
    )
    for name, arguments, result in (
        ("start", (c_int, ctypes.c_int64, c_double, c_uint64), None),
        ("stop", (), None),
        ("has_context", (c_int,), c_int),
        ("set_delay", (c_double,), None),
        ("keep_to", (c_uint64,), None),
        ("limit_memory", (c_int, c_double), None),
        ("seed", (c_int,), c_uint64),
        ("offset", (c_int,), c_uint64),
        ("set_seed", (c_int, c_uint64, c_uint64), None),
        ("refuse_waits", (c_int,), None),
        ("clear_counts", (), None),
        ("most_pinned_bytes", (), ctypes.c_int64),
        ("waits", (), ctypes.c_char_p),
        ("issues", (), ctypes.c_char_p),
        ("fail", (c_int, c_int), None),
        ("slow_links", (c_double, c_double), None),
        ("forget_error", (c_int,), None),
        ("hold", (c_void_p,), c_void_p),
        ("release", (c_void_p,), None),
        ("give", (c_void_p, c_void_p, c_void_p), None),
        ("for_kernels", (c_int, c_void_p), c_void_p),
    ):
        function = getattr(library, f"standin_{name}")
        function.argtypes, function.restype = arguments, result
    return library


# What a test does with the devices.


def set_delay(us):
    """The mean time in microseconds that a stream waits before each kernel, from now on."""
    _library.standin_set_delay(us)


def keep_to(*devices):
    """Any use of another device is an error from now on; without arguments all may be used."""
    mask = sum(1 << device for device in devices) if devices else (1 << 64) - 1
    _library.standin_keep_to(mask)


def has_context(device):
    """Whether anything has used this device."""
    return bool(_library.standin_has_context(device))


def waits():
    """How often the host waited for a device, by ``(thread, place)``; the first is "main"."""
    return _counts(_library.standin_waits())


def issues():
    """How often work was given to streams, by ``(thread, stream)``: "standin0.0" is device 0's."""
    return _counts(_library.standin_issues())


def _counts(text):
    counts = {}
    for line in text.decode().splitlines():
        count, thread, place = line.split("\t")
        counts[thread, place] = int(count)
    return counts


def most_pinned_bytes():
    """Of pinned memory in use at any time since the counts were cleared."""
    return _library.standin_most_pinned_bytes()


def clear_counts():
    _library.standin_clear_counts()


@contextmanager
def no_waits():
    """A wait of the host for a device raises RuntimeError where it is asked for."""
    _library.standin_refuse_waits(1)
    try:
        yield
    finally:
        _library.standin_refuse_waits(0)


def fail(fault, nth=1):
    """The ``nth`` from now on fails: of "allocation", "copy" (between memories), "pinned"."""
    _library.standin_fail(FAULTS.index(fault), nth)


def slow_links(latency_us=0.0, bytes_per_s=0.0):
    """What copies between host and devices, and between devices, take at least; 0: nothing."""
    _library.standin_slow_links(latency_us, bytes_per_s)


def busy(us):
    """The current stream does nothing else for so long."""
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    _library.standin_give(current_stream().native_handle, usleep, us)


def make_slow_operator(name, forward_us, backward_us):
    """``torch.ops.NAME::slow`` copies a tensor, and its backward the gradient; each takes so long
    on the device."""

    @operators.custom_op(f"{name}::slow", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        busy(forward_us)
        return x.clone()

    @operators.custom_op(f"{name}::slow_back", mutates_args=())
    def slow_back(gradient: torch.Tensor) -> torch.Tensor:
        busy(backward_us)
        return gradient.clone()

    slow.register_autograd(lambda context, gradient: slow_back(gradient))


@contextmanager
def held(stream=None):
    """What this stream, or the current one, is given in the block is done after the block."""
    handle = (stream or current_stream()).native_handle
    mark = _library.standin_hold(handle)
    try:
        yield
    finally:
        _library.standin_release(mark)


def forget_error(device=0):
    """Uses a device again whose kernel has failed, which CUDA cannot do."""
    _library.standin_forget_error(device)


# What torch and scripts expect of a device's module.


def is_available():
    return _library is not None


def is_initialized():
    return _library is not None


def _is_in_bad_fork():
    return False


def _lazy_init():
    pass


def device_count():
    return _devices


def current_device():
    return torch.accelerator.current_device_index()


def set_device(device):
    torch.accelerator.set_device_index(device)


def _index(device):
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


@contextmanager
def device(device):
    """This device is current in the block."""
    before = current_device()
    set_device(_index(device))
    try:
        yield
    finally:
        set_device(before)


_owner = ""  # of the devices: this process, or the machine


def share_devices():
    """From here on device 1 of this process is that of all others that say so, as where processes
    see the same devices; each has memory of its own all the same."""
    global _owner
    _owner = "machine"


def get_device_properties(device=None):
    """Name, memory in bytes, and an identity that no two devices of a job share, but for those of
    :func:`share_devices`."""
    index = _index(device)
    return types.SimpleNamespace(
        name="stand-in",
        total_memory=torch.accelerator.get_memory_info(index)[1],
        L2_cache_size=CACHE_BYTES,
        uuid=f"standin-{_owner or os.getpid()}-{index}",
    )


def get_device_name(device=None):
    return get_device_properties(device).name


_fractions = {}  # by device


def set_per_process_memory_fraction(fraction, device=None):
    _library.standin_limit_memory(_index(device), fraction)
    _fractions[_index(device)] = fraction


def get_per_process_memory_fraction(device=None):
    return _fractions.get(_index(device), 1.0)


def synchronize(device=None):
    torch.accelerator.synchronize(_index(device))


def current_stream(device=None):
    return torch.accelerator.current_stream(_index(device))


def Stream(device=None, priority=0):
    return torch.Stream(device=f"standin:{_index(device)}", priority=priority)


def Event(enable_timing=False):
    return torch.Event(device="standin", enable_timing=enable_timing)


def manual_seed(seed):
    _library.standin_set_seed(current_device(), seed % (1 << 64), 0)


def manual_seed_all(seed):
    for index in range(device_count()):
        _library.standin_set_seed(index, seed % (1 << 64), 0)


def initial_seed():
    return _library.standin_seed(current_device())


def get_rng_state(device=None):
    """Seed and offset, as 16 bytes of the host."""
    index = _index(device)
    pair = (_library.standin_seed(index), _library.standin_offset(index))
    return torch.frombuffer(bytearray(struct.pack("QQ", *pair)), dtype=torch.uint8)


def set_rng_state(state, device=None):
    _library.standin_set_seed(_index(device), *struct.unpack("QQ", bytes(state.tolist())))


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]
