"""A Slurm of this machine alone, for the time of a test: its daemons, in a folder of their own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import mpi

DAEMONS = ("munged", "slurmctld", "slurmd")
DEADLINE_S = 60
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def why_not() -> str:
    """Why this machine cannot have one; empty if it can."""
    missing = [name for name in DAEMONS if _program(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt install slurm-wlm"
    return "" if os.geteuid() == 0 else "its daemons are started by root"


def _program(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


@contextlib.contextmanager
def running(folder: Path):
    """The variables with which its commands find it."""
    host = socket.gethostname()
    for name in ("state", "spool"):
        (folder / name).mkdir()
    configuration = folder / "slurm.conf"
    ports = [mpi.free_port() for _ in range(2)]
    configuration.write_text(_CONFIGURATION.format(host=host, folder=folder, ports=ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [
        f"--{what}={folder}/munge.{what.partition('-')[0]}"
        for what in ("key-file", "socket", "pid-file", "log-file", "seed-file")
    ]
    variables = os.environ | {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        for command in (
            [_program("munged"), "--foreground", "--force", *files],
            [_program("slurmctld"), "-D", "-f", str(configuration)],
            [_program("slurmd"), "-D", "-N", host, "-f", str(configuration)],
        ):
            started = subprocess.Popen(
                command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(_end, started)
            time.sleep(0.5)  # each asks the one before it
        end = time.monotonic() + DEADLINE_S
        while "idle" not in _state(variables):
            assert time.monotonic() < end, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.5)
        yield variables


def _state(variables) -> str:
    asked = subprocess.run(
        ["sinfo", "--noheader"], env=variables, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return asked.stdout


def _end(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
