"""Which NCCL is opened, and what is said where there is none that can be used."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import nccl
import pytest

from pyrannc import _C
from pyrannc.errors import CommError

DEADLINE_S = 60  # against hangs
stand_in = pytest.mark.skipif(not nccl.FILE.exists(), reason=f"{nccl.FILE} was not built")


def real():
    """A real library: of $NCCL_HOME, or of a Python package."""
    folders = [Path(sysconfig.get_path("purelib"), "nvidia", "nccl", "lib")]
    if os.environ.get("NCCL_HOME"):
        folders.insert(0, Path(os.environ["NCCL_HOME"], "lib"))
    files = [folder / "libnccl.so.2" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CommError) as error:
        _C.comm.find_nccl(str(tmp_path / "libnccl.so.2"))
    text = str(error.value)
    assert "NCCL cannot be opened" in text
    assert str(tmp_path) in text
    assert "RANNC_NCCL_LIBRARY" in text
    assert "staged" in text


def test_a_file_that_is_no_nccl():
    with pytest.raises(CommError, match=r"'libm.so.6' has no function nccl\w+"):
        _C.comm.find_nccl("libm.so.6")


@stand_in
def test_one_that_is_too_old(monkeypatch):
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22503")
    with pytest.raises(CommError, match=r"NCCL 2.25.3 \(.*\) is too old: RaNNC needs 2.26.0"):
        _C.comm.find_nccl(str(nccl.FILE))


@stand_in
def test_file_and_version(monkeypatch):
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22600")
    assert _C.comm.find_nccl(str(nccl.FILE)) == (str(nccl.FILE), 22600)
    assert _C.comm.nccl_version_text(22600) == "2.26.0"
    assert _C.comm.nccl_version_text(2804) == "2.8.4"


@stand_in
def test_without_a_name_it_is_the_one_that_is_loaded_already():
    """A torch that was built for CUDA has loaded its own."""
    code = f"""
import ctypes, torch
loaded = [line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line]
if not loaded:
    ctypes.CDLL({str(nccl.FILE)!r})
    loaded = [{str(nccl.FILE)!r}]
from pyrannc import _C
print(_C.comm.find_nccl()[0], loaded[0])
"""
    job = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    found, loaded = job.stdout.split() or ("", job.stderr)
    assert found == loaded


@pytest.mark.skipif(real() is None, reason="no real NCCL: neither $NCCL_HOME nor a package")
def test_the_real_one_says_its_version_and_fails_without_a_device():
    file, version = _C.comm.find_nccl(str(real()))
    assert version >= 22600
    library = nccl.Nccl(file)
    assert library.version() == version
    unique_id = library.unique_id()
    assert any(bytes(unique_id))
    with pytest.raises(nccl.NcclError, match=r"ncclCommInitRankConfig|asynchronous error"):
        library.start(unique_id, 0, 1)


def test_the_extension_needs_no_cuda_and_no_nccl_to_be_loaded():
    """Neither their functions, nor those of torch's libraries for CUDA."""
    job = subprocess.run(
        ["nm", "-DC", "--undefined-only", _C.__file__], capture_output=True, text=True
    )
    assert job.returncode == 0, job.stderr
    names = [line.split(maxsplit=1)[1] for line in job.stdout.splitlines()]
    assert len(names) > 100
    foreign = ("nccl", "pnccl", "cuda", "cu", "at::cuda::", "c10::cuda::", "torch::cuda::")
    assert [name for name in names if name.startswith(foreign)] == []
    job = subprocess.run(["readelf", "-d", _C.__file__], capture_output=True, text=True)
    libraries = [line for line in job.stdout.splitlines() if "NEEDED" in line]
    assert len(libraries) > 3, job.stderr
    assert [line for line in libraries if "cuda" in line or "nccl" in line] == []
