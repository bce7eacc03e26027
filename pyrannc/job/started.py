"""How this process was started, by the variables that launchers set. Needs no torch."""

import dataclasses
import os
import re
import sys

# Variables with the number of processes and with this one's number, the innermost launcher first:
# what mpirun starts within a Slurm job, or torchrun under srun, has those of the outer one, too.
LAUNCHERS = (
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("a launcher with PMI", "PMI_SIZE", "PMI_RANK"),
    ("torchrun", "WORLD_SIZE", "RANK"),
    # Those of a step; those of the allocation are in its batch script, too, which is one process.
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
_TORCHRUN = "TORCHELASTIC_RUN_ID"  # which no other launcher sets
_OF_MPI = ("mpirun", "a launcher with PMI")
_PORTS = range(20000, 30000)  # of which a job of Slurm takes one


@dataclasses.dataclass(frozen=True)
class Started:
    """A process of a job.

    Attributes:
        transport: "mpi", "c10d", or None for a process by itself.
        rank: None where only the transport knows it.
        size: The same.
        launcher: In words.
    """

    transport: str | None
    rank: int | None = 0
    size: int | None = 1
    launcher: str = "none"


def innermost_first() -> tuple:
    """The :data:`LAUNCHERS`. A torchrun with several processes is within what started it (srun
    with PMI, mpirun with one process per host), and not around it."""
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    if _TORCHRUN not in os.environ or not several:
        return LAUNCHERS
    return tuple(sorted(LAUNCHERS, key=lambda each: each[0] != "torchrun"))


def by() -> Started:
    """By a group of torch.distributed that the script has made, or what the innermost launcher
    says."""
    first = next((each for each in innermost_first() if _is_set(each)), None)
    of_mpi = _of(first) if first is not None and first[0] in _OF_MPI else None
    # PMIx sets the number of a process alone, and torchrun may be within what did.
    by_torchrun = first is not None and first[0] == "torchrun" and _TORCHRUN in os.environ
    if of_mpi is None and not by_torchrun and "PMIX_RANK" in os.environ:
        return Started("mpi", int(os.environ["PMIX_RANK"]), None, "a launcher with PMIx")
    if of_mpi is None and (group := _group()) is not None:
        return group
    if of_mpi is not None and of_mpi.size > 1:
        return of_mpi
    for each in innermost_first():
        if each[0] not in _OF_MPI and _is_set(each) and _of(each).size > 1:
            return _of(each)
    return Started(None)


def _is_set(launcher):
    """Whether its variables are there, and numbers; job.launchers says where they are none."""
    _, size, rank = launcher
    values = [os.environ.get(name, "") for name in (size, rank)]
    return all(re.fullmatch(r" *\d+ *", each) for each in values)


def _of(launcher):
    name, size, rank = launcher
    transport = "mpi" if name in _OF_MPI else "c10d"
    return Started(transport, int(os.environ[rank]), int(os.environ[size]), name)


def _group():
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size == 1:
        return None
    return Started("c10d", distributed.get_rank(), size, "torch.distributed")


def torch_variables(how: Started) -> dict[str, str]:
    """What torch.distributed reads, for a job of :func:`by`; of srun from Slurm's variables."""
    found = {"RANK": str(how.rank), "WORLD_SIZE": str(how.size)}
    if how.launcher == "srun":
        hosts = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST", "")
        several = os.environ.get("SLURM_STEP_NUM_NODES", "1") != "1"
        job, step = (int(os.environ.get(f"SLURM_{name}", "0")) for name in ("JOB_ID", "STEP_ID"))
        found["MASTER_ADDR"] = first_host(hosts) if several else "localhost"
        found["MASTER_PORT"] = str(_PORTS[(job * 31 + step) % len(_PORTS)])
        found["LOCAL_RANK"] = os.environ.get("SLURM_LOCALID", "0")
    return found


def first_host(hosts: str) -> str:
    """Of a list of Slurm: ``node[07-12,20],other`` begins with ``node07``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", hosts)
    return "localhost" if match is None else match[1] + (match[2] or "")
