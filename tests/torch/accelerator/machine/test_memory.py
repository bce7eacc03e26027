"""Memory of a device is out of the host's reach."""

import ctypes
import os
import signal

import pytest
import torch


def signal_of(touch):
    """What ends a process that does this; a copy of this one, which does nothing else."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # without pytest's report of it
        touch()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status)


def test_a_host_that_reads_or_writes_a_tensors_address_is_ended_at_once():
    tensor = torch.ones(4, device="standin")
    torch.accelerator.synchronize()
    address = tensor.data_ptr()
    assert signal_of(lambda: ctypes.string_at(address, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.memset(address, 0, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.string_at(torch.ones(4).data_ptr(), 1)) == 0


def test_numpy_gets_no_view():
    with pytest.raises(TypeError, match="can't convert standin:0 device type tensor to numpy"):
        torch.ones(2, device="standin").numpy()


def test_a_tensor_of_given_memory_is_on_the_device_that_holds_it():
    tensor = torch.arange(6.0, device="standin:1")
    view = tensor.untyped_storage()
    assert view.device == torch.device("standin:1")
    assert torch.empty(0, device="standin:1").set_(view, 2, (2,)).tolist() == [2.0, 3.0]
