"""The collectives over MPI: many checks in one job, because starting ranks takes seconds."""

import json
import os
import shutil
import subprocess
import sys

import mpi
import pytest
import torchrun

from pyrannc import _C

CHECKS = [str(mpi.JOBS / "collectives.py")]


# "none": messages between ranks of a host need both sides, as between hosts.
@pytest.mark.parametrize("ranks, single_copy", [(2, "cma"), (4, "cma"), (2, "none")])
def test_collectives_over_mpi(ranks, single_copy):
    variable = "OMPI_MCA_btl_vader_single_copy_mechanism"
    result = mpi.run(CHECKS, ranks, env={variable: single_copy})
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)
    wrong = [(rank, name) for rank, r in enumerate(reports) for name, ok in r.items() if not ok]
    assert len(reports) == ranks and len(reports[0]) > 25
    assert not wrong
    if single_copy == "none":
        assert "messages within this host need the sender" in result.stderr


@pytest.mark.parametrize("late_s", [0.2, 1.5])
def test_a_rank_may_end_before_a_collective_that_it_waits_for_no_longer(late_s):
    """Its last message comes while Python ends, or after it."""
    code = f"""
        import time, numpy
        from pyrannc import launch

        world = launch.world()
        numbers = numpy.ones(300_000)
        if world.rank == 1:
            time.sleep({late_s})
        sums = world.start_all_reduce_sum(numbers)
        if world.rank == 1:
            sums.wait()
            assert (numbers == 2).all()
        del numbers, sums
    """
    done = mpi.run(code, 2)
    assert done.returncode == 0, done.stderr


def test_one_process_without_mpirun_is_a_world_of_one_and_starts_no_mpi(monkeypatch):
    from pyrannc import _C, launch
    from pyrannc.job import started

    monkeypatch.setattr(launch, "_world", None)
    for _, *names in started.LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    world = launch.world()
    assert (world.rank, world.size, launch.get_rank(), launch.get_world_size()) == (0, 1, 0, 1)
    assert world.all_gather(b"me") == [b"me"]
    launch.barrier()
    assert not _C.comm.started_mpi()


def opened(**variables):
    """What MPI a new process finds."""
    program = "from pyrannc import _C\nprint(_C.comm.mpi_version())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(mpi.ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout + done.stderr


def test_nothing_is_linked_to_mpi_and_its_library_is_found_when_it_is_used(tmp_path):
    linked = subprocess.run(["ldd", _C.__file__], capture_output=True, text=True).stdout
    assert "libc10" in linked and "libmpi" not in linked
    found = opened()
    assert found.startswith("Open MPI v4.") or found.startswith("Open MPI v5.")
    # Beside the mpirun that PATH finds, as in a cluster's module or an environment of conda.
    library = found.split("(")[1].split(")")[0]
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin" / "mpirun").touch()
    shutil.copy(library, tmp_path / "lib" / "libmpi.so.40")
    at_front = f"{tmp_path}/bin:{os.environ['PATH']}"
    assert str(tmp_path / "lib" / "libmpi.so.40") in opened(PATH=at_front)
    assert f"({library})" in opened(PATH=at_front, RANNC_MPI_LIBRARY=library)


def test_a_library_that_is_none_is_an_error_that_says_how_to_get_one(tmp_path):
    said = opened(RANNC_MPI_LIBRARY="/nowhere/libmpi.so.40")
    assert "MPI cannot be opened: /nowhere/libmpi.so.40: cannot open shared object file" in said
    assert "RANNC_MPI_LIBRARY" in said and "torchrun" in said
    said = opened(RANNC_MPI_LIBRARY=shutil.which("true"))
    assert "MPI cannot be opened" in said
    other = subprocess.run(["ldd", _C.__file__], capture_output=True, text=True).stdout
    (libm,) = [line.split()[2] for line in other.splitlines() if line.strip().startswith("libm.so")]
    said = opened(RANNC_MPI_LIBRARY=libm)
    assert "it is not the MPI that RaNNC was built for" in said


def test_without_mpi_ranks_meet_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("RANNC_MPI_LIBRARY", "/nowhere/libmpi.so.40")
    done = torchrun.run(
        """
        import torch, pyrannc, pyrannc.launch
        model = torch.nn.Linear(4, 4)
        model = pyrannc.RaNNCModule(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(2, 4)).sum().backward()
        print("trained on", pyrannc.launch.get_world_size())
        """,
        2,
        tmp_path,
    )
    assert done.stdout.count("trained on 2") == 2, done.stderr
