"""Threads per rank, of ranks as threads of this process."""

import os

import pytest
import torch
from pipeline import run_ranks

from pyrannc.job.process import share_cores


@pytest.fixture
def used(monkeypatch):
    """What set_num_threads was called with."""
    calls = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    return calls


def share(hosts):
    run_ranks(len(hosts), lambda world: share_cores(world, hosts))


def test_ranks_of_a_host_share_its_cores(used):
    share(["a", "a", "a", "b"])  # 8 / 3 = 2; the rank alone keeps its 8
    assert used == [2, 2, 2]


def test_more_ranks_than_cores_use_one_thread_each(used, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    share(["a", "a", "a"])
    assert used == [1, 1, 1]


def test_the_environment_and_a_smaller_number_of_the_user_stay(used, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    share(["a", "a", "a"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    share(["a", "a", "a"])
    assert used == []
