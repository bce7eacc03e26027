"""How fast hosts are beside each other, and which of them are of one kind."""

import threading
from types import SimpleNamespace

import pytest
import torch

from pyrannc import _C
from pyrannc.profiling import host_speeds


@pytest.mark.parametrize(
    "rates, processors, speeds",
    [
        ([100, 90, 110], "aaa", [1, 1, 1]),  # what differs by little is of one kind
        ([100, 25], "aa", [1, 0.25]),
        ([25, 100, 26], "aaa", [0.255, 1, 0.255]),
        ([100, 90], "ab", [1, 0.9]),  # other processors are other kinds
    ],
)
def test_hosts_of_a_kind_are_equally_fast(rates, processors, speeds):
    assert host_speeds.of_kinds(rates, [*processors]) == pytest.approx(speeds)


def test_the_fastest_ranks_time_operators(monkeypatch):
    ranks, found = _C.comm.make_local(3), [None] * 3
    monkeypatch.setattr(
        host_speeds, "_counter", lambda device: lambda seconds: rates[threading.current_thread()]
    )

    def run(rank):
        task = SimpleNamespace(world=ranks[rank], device=torch.device("cpu"))
        found[rank] = host_speeds.measure(task, ["a", "b", "b"])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    rates = dict(zip(threads, [10, 40, 44], strict=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[0] == found[1] == found[2]
    assert found[0].of_hosts == pytest.approx([10 / 42, 1]) and found[0].fastest == [1, 2]


def test_one_host_has_nothing_to_compare():
    speeds = host_speeds.measure(None, ["a", "a"])
    assert speeds == host_speeds.HostSpeeds([], [0, 1])


def test_ranks_count_what_they_compute():
    assert host_speeds._counter(torch.device("cpu"))(0.02) > 0
