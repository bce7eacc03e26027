"""What connecting ranks takes of a device's memory, and what messages over it may be left over."""

import torch

from pyrannc import _C
from pyrannc.job import transport

TOTAL = 1000 << 20


def test_what_connecting_takes_is_counted_beside_torchs_own(monkeypatch):
    free, reserved = 900 << 20, 10 << 20
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (free, TOTAL))
    monkeypatch.setattr(torch.accelerator, "memory_reserved", lambda device: reserved)
    unused = 5 << 20

    def empty_cache():
        nonlocal free, reserved, unused
        free, reserved, unused = free + unused, reserved - unused, 0

    monkeypatch.setattr(torch.accelerator, "empty_cache", empty_cache)
    with transport.counting_memory(torch.device("cuda", 0)) as taken:
        assert not unused  # others can take it now
        free -= 64 << 20  # of which torch has 24
        reserved += 24 << 20
    assert taken == [40 << 20]
    with transport.counting_memory(torch.device("cuda", 0)) as taken:
        free += 5 << 20  # given back
    assert taken == [0]
    with transport.counting_memory(torch.device("cpu")) as taken:
        pass
    assert taken == []


def test_messages_of_the_world_and_of_devices_over_it_may_be_left():
    [world] = _C.comm.make_local(1)
    assert transport.left_messages(world) == ""
