"""A launcher that starts other processes than were found is an error."""

import types

import pytest

from pyrannc.errors import CommError
from pyrannc.job import launchers, started

NAMES = {name for _, *names in started.LAUNCHERS for name in names}


def world(size=1, rank=0):
    return types.SimpleNamespace(size=size, rank=rank)


@pytest.fixture
def variables(monkeypatch):
    for name in NAMES | {"SLURM_NTASKS", "SLURM_JOB_ID", "PMIX_RANK", "TORCHELASTIC_RUN_ID"}:
        monkeypatch.delenv(name, raising=False)

    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return set_all


@pytest.mark.parametrize(
    "found, expected",
    [
        ({"RANK": 1, "WORLD_SIZE": 4}, r"torchrun started this process as rank 1 of 4"),
        ({"SLURM_PROCID": 2, "SLURM_STEP_NUM_TASKS": 3}, r"srun started .* as rank 2 of 3"),
        ({"PMI_RANK": 0, "PMI_SIZE": 2}, r"PMI started this process as rank 0 of 2"),
        ({"RANK": "one", "WORLD_SIZE": 2}, r"RANK='one' is no number"),
    ],
)
def test_a_process_that_is_alone_though_its_launcher_counts_several_is_told(
    variables, found, expected
):
    variables(**found)
    with pytest.raises(CommError, match=expected):
        launchers.check(world())


def test_the_innermost_launcher_counts(variables):
    # mpirun within a step of srun, and torchrun within a job of mpirun's allocation.
    variables(OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=1, RANK=0, WORLD_SIZE=1)
    variables(SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=1)
    launchers.check(world(2, 1))
    with pytest.raises(CommError, match="rank 1 of 2"):
        launchers.check(world(4, 1))


def test_a_torchrun_within_srun_or_mpirun_counts(variables):
    variables(PMI_SIZE=2, PMI_RANK=1, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=1)
    variables(TORCHELASTIC_RUN_ID="none", WORLD_SIZE=8, RANK=5)
    launchers.check(world(8, 5))
    with pytest.raises(CommError, match="torchrun started this process as rank 5 of 8"):
        launchers.check(world(2, 1))


def test_an_allocation_is_no_launcher(variables):
    """Within the batch script of an allocation of 8 tasks one process is one process."""
    variables(SLURM_NTASKS=8, SLURM_PROCID=0, SLURM_JOB_ID=1)
    launchers.check(world())


def test_a_group_of_torch_distributed_has_the_same_ranks(variables, tmp_path):
    import torch

    torch.distributed.init_process_group(
        "gloo", f"file://{tmp_path / 'group'}", rank=0, world_size=1
    )
    try:
        launchers.check(world())
        with pytest.raises(CommError, match=r"torch\.distributed has this process as rank 0 of 1"):
            launchers.check(world(2))
    finally:
        torch.distributed.destroy_process_group()
