"""The rows of `rannc doctor` on devices, driver, CUDA and NCCL."""

import nccl
import pytest
import torch

from pyrannc.cli import devices

without_gpu = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="this machine has a device"
)


def examine():
    rows, problems = [], []
    devices.examine(rows, problems)
    return dict(rows), problems


@without_gpu
def test_a_machine_without_a_device_is_no_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "none")
    rows, problems = examine()
    assert problems == []
    assert rows["driver"] == "none"
    assert rows["devices"] == "none: ranks compute on the CPU"
    assert rows["messages between ranks"] == "memory of the host, by MPI"
    assert rows["CUDA of torch"] == torch.version.cuda or "none: this torch is for the CPU"


@without_gpu
@pytest.mark.parametrize(
    ("cuda", "expected"),
    [(None, "this torch is for the CPU: install its build"), ("13.0", "torch finds no device")],
)
def test_a_driver_that_is_of_no_use_has_its_fix(monkeypatch, tmp_path, cuda, expected):
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65  Release\nGCC\n")
    monkeypatch.setattr(devices, "DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    rows, problems = examine()
    assert "580.65" in rows["driver"]
    assert len(problems) == 1
    assert expected in problems[0]


def test_a_library_that_is_named_and_missing_is_a_problem(monkeypatch):
    monkeypatch.setenv("RANNC_NCCL_LIBRARY", "/none/libnccl.so.2")
    rows, problems = examine()
    assert rows["NCCL"] == "none"
    assert len(problems) == 1
    assert "/none/libnccl.so.2" in problems[0]


@pytest.mark.skipif(not nccl.FILE.exists(), reason=f"{nccl.FILE} was not built")
def test_version_and_file_of_nccl(monkeypatch):
    monkeypatch.setenv("RANNC_NCCL_LIBRARY", str(nccl.FILE))
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "23004")
    rows, problems = examine()
    assert rows["NCCL"] == f"2.30.4 ({nccl.FILE})"
    assert problems == []
