"""The collectives over MPI: many checks in one job, because starting ranks takes seconds."""

import json

import mpi
import pytest

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
