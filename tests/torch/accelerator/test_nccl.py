"""The nccl backend over the stand-in NCCL, ranks as threads with a device each: random graphs under
random plans equal one process, in the Program's order of communication."""

import ctypes
import os
import threading

import pytest
import standin
import torch
from nccl import FILE, FLOAT32, Nccl, UniqueId
from on_devices import run

from pyrannc import _C
from pyrannc.job import process

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} was not built")
MODES = {
    "as it is": {},
    "one call at a time on a device": {"STANDIN_NCCL_ONE_AT_A_TIME": "1"},
    "messages buffered": {"STANDIN_NCCL_BUFFERED": "1"},
}


@pytest.fixture(autouse=True)
def environment():
    process.order_nccl_launches()
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def connect(host, device, one_stream=False):
    return _C.runtime.nccl(host, device, str(FILE), one_stream)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("delay_us", [0, 300])
def test_random_plans_equal_one_process(mode, delay_us):
    standin.set_delay(delay_us)
    os.environ.update(MODES[mode])
    for seed in range(9):
        assert run(seed, connect) == [], f"seed {seed}"


@pytest.mark.all
@pytest.mark.parametrize("hundred", range(3))
def test_three_hundred_random_plans_equal_one_process(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        assert run(seed, connect) == [], f"seed {seed}"


def test_all_on_one_stream():
    for seed in range(6):
        assert run(seed, lambda host, device: connect(host, device, True)) == [], f"seed {seed}"


def test_nobody_of_the_host_waits_for_messages_and_sums():
    """Who computes reads the gradient of the loss, to see whether it is 1; the test copies."""
    standin.clear_counts()
    for seed in range(6):
        assert run(seed, connect) == [], f"seed {seed}"
    places = {place for _, place in standin.waits()}
    assert places <= {"aten::_local_scalar_dense", "copy to device", "copy to host"}, places


def test_a_stream_that_records_nothing_is_seen():
    standin.set_delay(2000)
    wrong = [seed for seed in range(6) if run(seed, connect, stream=late)]
    assert wrong


def late():
    return _C.comm.LateStream(0.0)


def test_forwards_alone_and_backwards_that_never_come():
    def before(executor, forward):
        with torch.no_grad():
            forward(with_backward=False)
        forward(with_backward=True)  # nobody asks for its gradients

    for seed in range(6):
        assert run(seed, connect, around=before) == [], f"seed {seed}"


def test_gradients_that_are_kept_and_summed_later():
    """Twice the gradients: one call under no_sync, and one that sums both."""

    def before(executor, forward):
        call = forward(with_backward=True, no_sync=True)
        outputs = call.outputs
        call.backward([torch.zeros_like(outputs[0])] + [None] * (len(outputs) - 1))

    for seed in range(6):
        assert run(seed, connect, around=before) == [], f"seed {seed}"


# Collectives of the script's own, on the same devices.


class Script:
    """A communicator of the script's on each rank, as torch.distributed's: of its own id, with a
    stream of its own."""

    def __init__(self):
        self.mine = threading.local()

    def connect(self, host, device):
        comm = connect(host, device)
        library = Nccl(FILE)
        made = library.unique_id() if host.rank == 0 else UniqueId()
        unique_id = UniqueId.from_buffer_copy(host.broadcast(bytes(made)))
        self.mine.nccl = library
        self.mine.rank, self.mine.ranks = host.rank, host.size
        self.mine.comm = library.start(unique_id, host.rank, host.size)
        self.mine.stream = standin.Stream(device)
        self.mine.seen = []
        return comm

    def all_reduce(self, *_):
        """Of what the device has just made; nobody waits for it on the host."""
        mine = self.mine
        data = torch.full((1000,), 1.0 + mine.rank, device=f"standin:{mine.rank}")
        mine.stream.wait_stream(standin.current_stream())
        address, handle = data.data_ptr(), ctypes.c_void_p(mine.stream.native_handle)
        mine.nccl.AllReduce(address, address, 1000, FLOAT32, 0, mine.comm, handle)
        mine.nccl.settle(mine.comm)
        standin.current_stream().wait_stream(mine.stream)
        mine.seen.append(data)

    def check(self, *_):
        """Before a step: what the steps before have summed is right."""
        expected = self.mine.ranks * (self.mine.ranks + 1) / 2
        for data in self.mine.seen:
            assert (data.cpu() == expected).all()
        self.mine.seen = []


@pytest.mark.parametrize("mode", ["as it is", "one call at a time on a device"])
def test_the_scripts_own_collectives_between_calls_and_between_forward_and_backward(mode):
    os.environ.update(MODES[mode])
    script = Script()

    def before(executor, forward):
        script.check()
        script.all_reduce()

    for seed in range(9):
        found = run(seed, script.connect, steps=3, around=before, between=script.all_reduce)
        assert found == [], f"seed {seed}"
