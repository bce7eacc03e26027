"""NCCL with one rank: start under a deadline, a message to itself in a group, collectives, split,
abort. By ctypes, so that nothing but the library and the device has part in it."""

import ctypes
import json
import time

import device
import nccl
import torch

from pyrannc import _C


def run(place):
    file = str(nccl.FILE) if device.NAME == "standin" else _C.comm.find_nccl()[0]
    library = nccl.Nccl(file)
    figures = {"version": _C.comm.nccl_version_text(library.version())}
    begin = time.monotonic()
    comm = library.start(library.unique_id(), 0, 1)
    figures["start_ms"] = round(1e3 * (time.monotonic() - begin), 1)
    stream = device.new_stream(place)
    handle = ctypes.c_void_p(device.handle_of(stream))
    numbers = torch.arange(1000.0, device=place)
    got, summed, gathered = (torch.zeros_like(numbers) for _ in range(3))
    stream.wait_stream(torch.accelerator.current_stream())
    addresses = [tensor.data_ptr() for tensor in (numbers, got, summed, gathered)]

    library.GroupStart()
    library.Send(addresses[0], numbers.nbytes, nccl.UINT8, 0, comm, handle)
    library.Recv(addresses[1], numbers.nbytes, nccl.UINT8, 0, comm, handle)
    library.GroupEnd()
    library.settle(comm)
    library.AllReduce(addresses[0], addresses[2], 1000, nccl.FLOAT32, 0, comm, handle)
    library.settle(comm)
    other = library.split(comm, 0)
    library.AllGather(addresses[0], addresses[3], 1000, nccl.FLOAT32, other, handle)
    library.settle(other)
    stream.synchronize()
    failures = [
        f"{name}: other numbers"
        for name, found in (("message", got), ("sum", summed), ("gather", gathered))
        if not torch.equal(found.cpu(), numbers.cpu())
    ]
    for each in (other, comm):
        library.CommAbort(each)
    return {"figures": figures, "failures": failures}


if __name__ == "__main__":
    print(json.dumps(run(device.start())))
