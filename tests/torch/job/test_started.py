"""How a process was started, by variables of launchers. Slurm's are only set here."""

import pytest

from pyrannc.job import started

TORCHRUN = {"WORLD_SIZE": 8, "RANK": 5, "TORCHELASTIC_RUN_ID": "none"}


@pytest.fixture
def variables(monkeypatch):
    names = {name for _, *names in started.LAUNCHERS for name in names}
    for name in names | {"PMIX_RANK", "TORCHELASTIC_RUN_ID"}:
        monkeypatch.delenv(name, raising=False)
    return lambda **values: [monkeypatch.setenv(name, str(each)) for name, each in values.items()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (None, 0, 1)),
        ({"OMPI_COMM_WORLD_SIZE": 4, "OMPI_COMM_WORLD_RANK": 3}, ("mpi", 3, 4)),
        ({"PMI_SIZE": 2, "PMI_RANK": 1}, ("mpi", 1, 2)),
        ({"PMIX_RANK": 1}, ("mpi", 1, None)),
        ({"WORLD_SIZE": 2, "RANK": 1}, ("c10d", 1, 2)),
        ({"WORLD_SIZE": 1, "RANK": 0}, (None, 0, 1)),
        ({"SLURM_STEP_NUM_TASKS": 3, "SLURM_PROCID": 2}, ("c10d", 2, 3)),
        ({"SLURM_STEP_NUM_TASKS": 1, "SLURM_PROCID": 0}, (None, 0, 1)),
        # The innermost one counts: torchrun within a step of one task, mpirun within torchrun.
        (
            {"SLURM_STEP_NUM_TASKS": 1, "SLURM_PROCID": 0, "WORLD_SIZE": 4, "RANK": 1},
            ("c10d", 1, 4),
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_RANK": 1, "WORLD_SIZE": 4, "RANK": 0},
            ("mpi", 1, 2),
        ),
        # torchrun, one per host, within srun with PMI or PMIx, or within mpirun.
        ({"PMI_SIZE": 2, "PMI_RANK": 1} | TORCHRUN, ("c10d", 5, 8)),
        ({"PMIX_RANK": 1, "SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": 1} | TORCHRUN, ("c10d", 5, 8)),
        ({"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_RANK": 1} | TORCHRUN, ("c10d", 5, 8)),
        # mpirun within torchrun with one process, within an allocation of 4 tasks.
        (
            {"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_RANK": 1, "SLURM_NTASKS": 4}
            | {"SLURM_STEP_NUM_TASKS": 1, "SLURM_PROCID": 0, "PMIX_RANK": 1}
            | TORCHRUN
            | {"WORLD_SIZE": 1, "RANK": 0},
            ("mpi", 1, 2),
        ),
    ],
)
def test_the_innermost_launcher_with_several_processes_counts(variables, values, expected):
    variables(**values)
    found = started.by()
    assert (found.transport, found.rank, found.size) == expected


def test_ranks_of_srun_meet_at_the_first_host_of_their_step(variables, monkeypatch):
    variables(SLURM_STEP_NUM_TASKS=3, SLURM_PROCID=2, SLURM_JOB_ID=77, SLURM_STEP_ID=1)
    variables(SLURM_STEP_NODELIST="gpu[07-12,20],other", SLURM_STEP_NUM_NODES=2, SLURM_LOCALID=1)
    found = started.torch_variables(started.by())
    assert found == {
        "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu07",
        "MASTER_PORT": str(20000 + 77 * 31 + 1),
    }  # fmt: skip
    variables(SLURM_STEP_NUM_NODES=1)
    assert started.torch_variables(started.by())["MASTER_ADDR"] == "localhost"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a1", "a1"), ("a1,b2", "a1"), ("a[3,5]", "a3"), ("n-[001-010]", "n-001"), ("", "localhost")],
)
def test_the_first_host_of_a_list_of_slurm(hosts, first):
    assert started.first_host(hosts) == first
