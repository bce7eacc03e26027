"""NCCL's functions by ctypes: of the stand-in library (tests/nccl), or of a real one.

The stand-in works on the stand-in accelerator's streams, between processes and between threads with
a device each. It is as strict as the real one is vague: what may hang there is an error here.
"""

import ctypes
import os
import time
from pathlib import Path

import standin

FILE = Path(
    os.environ.get(
        "STANDIN_NCCL_LIBRARY", standin.ROOT / "build" / "tests" / "nccl" / "libnccl.so.2"
    )
)
SUCCESS, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS = 0, 5, 6, 7
UINT8, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 = 1, 6, 7, 8, 9
NO_COLOR = -1
UNDEFINED = -(2**31)


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.26."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_void_p),
        ("split_share", ctypes.c_int),
        ("traffic_class", ctypes.c_int),
    ]


def config(blocking=0):
    undefined = [UNDEFINED] * 3
    return Config(
        ctypes.sizeof(Config), 0xCAFEBEEF, 22600, blocking, *undefined, None, UNDEFINED, UNDEFINED
    )


class NcclError(RuntimeError):
    pass


class Nccl:
    """One library.

    Functions have NCCL's names without "nccl", as ``Send``; they raise NcclError unless they
    succeed or are in progress.
    """

    def __init__(self, file=FILE):
        self.functions = ctypes.CDLL(str(file))
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._arguments = {
            "GetVersion": (ctypes.POINTER(number),),
            "GetUniqueId": (ctypes.POINTER(UniqueId),),
            "CommInitRankConfig": (
                ctypes.POINTER(pointer), number, UniqueId, number, ctypes.POINTER(Config),
            ),
            "CommSplit": (
                pointer, number, number, ctypes.POINTER(pointer), ctypes.POINTER(Config),
            ),
            "CommAbort": (pointer,),
            "CommGetAsyncError": (pointer, ctypes.POINTER(number)),
            "Send": (pointer, size, number, number, pointer, pointer),
            "Recv": (pointer, size, number, number, pointer, pointer),
            "AllReduce": (pointer, pointer, size, number, number, pointer, pointer),
            "ReduceScatter": (pointer, pointer, size, number, number, pointer, pointer),
            "AllGather": (pointer, pointer, size, number, pointer, pointer),
            "GroupStart": (),
            "GroupEnd": (),
        }  # fmt: skip
        for name, arguments in self._arguments.items():
            getattr(self.functions, f"nccl{name}").argtypes = arguments
        self.functions.ncclGetLastError.argtypes = (pointer,)
        self.functions.ncclGetLastError.restype = ctypes.c_char_p

    def __getattr__(self, name):
        if name not in self._arguments:
            raise AttributeError(name)

        def call(*arguments):
            result = getattr(self.functions, f"nccl{name}")(*arguments)
            if result not in (SUCCESS, IN_PROGRESS):
                raise NcclError(f"nccl{name}: {result}: {self.last_error()}")
            return result

        return call

    def last_error(self, comm=None):
        return self.functions.ncclGetLastError(comm).decode()

    def version(self):
        found = ctypes.c_int()
        self.GetVersion(found)
        return found.value

    def unique_id(self):
        made = UniqueId()
        self.GetUniqueId(made)
        return made

    def settle(self, comm, deadline_s=20.0):
        """Until what ``comm`` does is no longer in progress."""
        error = ctypes.c_int(IN_PROGRESS)
        end = time.monotonic() + deadline_s
        while error.value == IN_PROGRESS:
            self.CommGetAsyncError(comm, error)
            if time.monotonic() > end:
                raise NcclError(f"still in progress after {deadline_s} s")
            time.sleep(0.0005)
        if error.value != SUCCESS:
            raise NcclError(f"asynchronous error {error.value}: {self.last_error(comm)}")

    def start(self, unique_id, rank, ranks, settle=True):
        """A communicator of the current device."""
        comm = ctypes.c_void_p()
        self.CommInitRankConfig(comm, ranks, unique_id, rank, config())
        if settle:
            self.settle(comm)
        return comm

    def split(self, comm, color, key=0):
        made = ctypes.c_void_p()
        self.CommSplit(comm, color, key, made, config())
        self.settle(comm)
        if made:
            self.settle(made)
        return made
