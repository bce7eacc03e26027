"""Devices whose backends say less of them than CUDA does."""

import types

import pytest
import torch

from pyrannc.job import device_facts
from pyrannc.planning import device_memory, planner_inputs
from pyrannc.selfcheck import compare

DEVICE = torch.device("meta")  # no test computes on it


@pytest.fixture
def silent(monkeypatch):
    """A backend with streams and memory, and nothing to ask about its devices."""

    def unknown(device):
        raise RuntimeError("Allocator for privateuseone is not a DeviceAllocator.")

    monkeypatch.setattr(torch, "get_device_module", lambda kind: types.SimpleNamespace())
    monkeypatch.setattr(torch.accelerator, "get_memory_info", unknown)
    monkeypatch.setattr(torch.accelerator, "memory_allocated", unknown)


def test_what_no_backend_says_is_left_open(silent):
    assert device_facts.name(DEVICE) == ""
    assert device_facts.uuid(DEVICE) is None
    assert device_facts.memory(DEVICE) is None
    assert device_facts.allocated_bytes(DEVICE) is None
    assert device_facts.total_bytes(DEVICE) == 0


def test_what_a_backend_says_counts(monkeypatch):
    properties = types.SimpleNamespace(name="Slate 5", uuid="1-2", total_memory=64)
    module = types.SimpleNamespace(get_device_properties=lambda device: properties)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (10, 64))
    assert device_facts.name(DEVICE) == "Slate 5"
    assert device_facts.uuid(DEVICE) == "1-2"
    assert device_facts.memory(DEVICE) == (10, 64)
    assert device_facts.total_bytes(DEVICE) == 64


@pytest.mark.parametrize("limit_gb", [0.0, 2.0])
def test_without_a_word_on_memory_the_limit_counts_or_the_hosts_share(silent, capfd, limit_gb):
    config = types.SimpleNamespace(mem_limit_gb=limit_gb, share_device=False)
    task = types.SimpleNamespace(
        config=config, model=None, optimizers=[], device=DEVICE, world=types.SimpleNamespace(rank=0)
    )
    found = planner_inputs.memory_of(DEVICE, task, ranks_on_host=2)
    assert found == planner_inputs.memory_of(DEVICE, task, ranks_on_host=2)
    said = "".join(capfd.readouterr()).count("does not say how much memory it has")
    if limit_gb:
        assert found == 2 * 2**30 and not said
    else:
        assert found == planner_inputs._share_of_host(2) and said == 1


def test_an_allocator_that_counts_nothing_as_reserved_leaves_what_is_free(monkeypatch):
    answers = {"get_memory_info": (10, 64), "memory_reserved": 0, "memory_allocated": 54}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.accelerator, name, lambda device, answer=answer: answer)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: types.SimpleNamespace())
    assert device_memory.available_bytes(DEVICE, torch.nn.Module(), []) == 10


def test_precisions_are_read_where_a_script_has_set_them_by_the_newer_switches():
    backends = torch.backends
    switches = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        assert not compare.rounds_float32()
        backends.cuda.matmul.fp32_precision = "tf32"  # from here on the older ones cannot be read
        assert device_facts.float32_precisions() == ["tf32", "ieee", "ieee"]
        assert compare.rounds_float32()
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision
