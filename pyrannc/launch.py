"""Starting ranks, and the communicator of this one.

Importing this module starts nothing and needs no torch.
"""

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

from pyrannc.job import started

TIMEOUT_S = 600.0

_world = None
_lock = threading.Lock()


def world(timeout_s: float = TIMEOUT_S):
    """The communicator of this job, made at the first call. Collective: every rank must make it.

    Under ``mpirun`` over MPI; under torchrun, srun without PMI, and where the script has made a
    group of torch.distributed, over connections that this group has agreed on. Otherwise it is a
    world of one, and nothing is started. ``timeout_s``: of the first call, for the others to come,
    and of what is sent until another one is set.

    Raises:
        CommError: MPI is absent from this build or cannot be used, or the launcher says that there
            are other ranks than were found.
    """
    global _world
    with _lock:
        if _world is None:
            from pyrannc import _C
            from pyrannc.config import Config
            from pyrannc.job import launchers, process

            config = Config.from_env()
            how = started.by()
            if how.transport is None:
                found = _C.comm.make_local(1, timeout_s)[0]
            elif how.transport == "mpi":
                found = _C.comm.make_mpi(timeout_s, start_timeout_s=timeout_s)
            else:
                from pyrannc.job import torch_group

                found = torch_group.communicator(how, timeout_s)
            if how.transport is not None:
                _C.util.set_log_rank(found.rank)
                process.end_job_on_error(found, config.end_job_on_error)
                process.leave_mpi_of_others()
            launchers.check(found)
            _world = found
        return _world


def init(timeout_s: float = TIMEOUT_S) -> None:
    """Meets the other ranks, and makes a Gloo group of torch.distributed where there is none, so
    that ``DistributedSampler(dataset)`` and torch.distributed.checkpoint know the ranks. Every rank
    calls it, before either is used; one rank alone needs no group. Sets RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT where they are missing.

    Raises:
        CommError: As :func:`world`; or torch.distributed has other ranks.
    """
    from pyrannc.job import torch_group

    torch_group.make(world(timeout_s), timeout_s)


def get_rank() -> int:
    """Number of this process among those of the job; 0 without a launcher."""
    known = started.by()
    return world().rank if known.rank is None else known.rank


def get_world_size() -> int:
    """Number of processes of the job; 1 without a launcher."""
    known = started.by()
    return world().size if known.size is None else known.size


def barrier() -> None:
    """Returns when every rank has called it."""
    world().barrier()


def environment(ranks: int) -> dict[str, str]:
    """This process's environment with what ``ranks`` ranks on this machine need.

    Variables that are set already keep their values.
    """
    cores = len(os.sched_getaffinity(0))
    # mpirun of Open MPI 4 wants a program that starts ranks on other hosts, also where there are
    # none: a machine without one, such as a container, names one that starts nothing.
    without = not any(map(shutil.which, ("ssh", "rsh")))
    # mpirun waits for its ssh, which would wait for minutes for a host that has gone.
    by_ssh = shutil.which("ssh") is not None and "OMPI_MCA_plm_rsh_agent" not in os.environ
    alive = "-o ServerAliveInterval=5 -o ServerAliveCountMax=4"
    return {
        **({"OMPI_MCA_plm_rsh_args": alive} if by_ssh else {}),
        **({"OMPI_MCA_plm_rsh_agent": "/bin/false"} if without else {}),
        # Containers: root, and more ranks than cores, for Open MPI 4 and 5.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # The thread that talks to MPI sleeps between polls. One that yields waits a whole time
        # slice behind the computation: milliseconds for each message.
        "OMPI_MCA_mpi_yield_when_idle": "0",
        # One copy from process to process, instead of 32 KiB pieces that each need a poll.
        "OMPI_MCA_btl_vader_single_copy_mechanism": "cma",
        # A host that dies without a word ends the job after 20 s; an outage of 8 s does not.
        "OMPI_MCA_oob_tcp_keepalive_time": "5",
        "OMPI_MCA_oob_tcp_keepalive_intvl": "3",
        "OMPI_MCA_oob_tcp_keepalive_probes": "5",
        # Threads of several ranks on the same cores spin at each other's barriers: 12x slower.
        "OMP_NUM_THREADS": str(max(1, cores // ranks)),
        # Sets of strings have one order: on every rank, for models that add up in it, and in every
        # run, for plans in files and deterministic dropout, which go by names of nodes.
        "PYTHONHASHSEED": "0",
        # mpirun reads ranks through pipes; what they print must not wait in a buffer.
        "PYTHONUNBUFFERED": "1",
        **os.environ,
    }


def variables_of_ranks(environment, names=()) -> dict[str, str]:
    """The variables of ``environment`` that every rank has to have, on other hosts too: mpirun
    hands them there only when it is told to.

    These are the settings of RaNNC, those of devices and their libraries, those that decide how
    Python and OpenMP start, and the ``names`` that a user asks for.
    """
    kinds = ("RANNC_", "NCCL_", "CUDA_", "PYTORCH_", "TORCH_")
    single = {"PYTHONHASHSEED", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", *names}
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(kinds) or name in single
    }


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("", 0))
        return found.getsockname()[1]


def meeting_place(environment, hosts="", hostfile="") -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, where they are missing: those of the first host, of rank 0.

    Args:
        environment: Of this process.
        hosts, hostfile: As mpirun gets them, or empty: the batch system's, or this machine.
    """
    first = "localhost"
    if hosts:
        first = hosts.partition(",")[0].partition(":")[0]
    elif hostfile or "PBS_NODEFILE" in environment:
        lines = Path(hostfile or environment["PBS_NODEFILE"]).read_text().splitlines()
        words = [line.partition("#")[0].split() for line in lines]
        first = next((each[0] for each in words if each), first)
    elif environment.get("SLURM_JOB_NUM_NODES", "1") != "1":
        first = started.first_host(environment.get("SLURM_JOB_NODELIST", ""))
    found = {"MASTER_ADDR": first, "MASTER_PORT": str(free_port())}
    return {name: environment.get(name, value) for name, value in found.items()}


def command(
    ranks: int, argv: list[str], handed: Iterable[str] = (), options: tuple = ()
) -> list[str]:
    """The ``mpirun`` call for ``ranks`` processes of ``argv``, to be run in :func:`environment`.

    ``handed`` are names of variables of that environment which ranks on other hosts get, too; their
    values are not in the command, which every user of a host can read. ``options``: of mpirun.

    Raises:
        FileNotFoundError: There is no ``mpirun``; says what to install.
    """
    program = shutil.which("mpirun")
    if program is None:
        raise FileNotFoundError(
            "mpirun was not found; install Open MPI (Debian: apt install openmpi-bin "
            "libopenmpi-dev) and build pyrannc again"
        )
    settings = [part for name in handed for part in ("-x", name)]
    return [program, "-n", str(ranks), *options, *settings, *argv]
