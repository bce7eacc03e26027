"""A rank of ``rannc run``: sets what torch's launcher would have set, and becomes the script.

Run as a file, by a Python that reads no environment: it imports nothing but what follows. Its
arguments are the folder for what it writes, or an empty one, and the script's command.
"""

import os
import socket
import subprocess
import sys

_OF_MPIRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_INTERFACES = "RANNC_RUN_INTERFACES"  # what `rannc run` says of the network between the hosts
_BY_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def variables(environment, cores) -> dict:
    """Those that are missing, by what mpirun has set; of a process by itself without it. The
    ``cores`` of this host are shared out among its ranks."""
    found = {}
    for name, of_mpirun in _OF_MPIRUN.items():
        alone = "1" if name.endswith("SIZE") else "0"
        if name not in environment:
            found[name] = environment.get(of_mpirun, alone)
    if "OMP_NUM_THREADS" not in environment:
        ranks = int(environment.get("LOCAL_WORLD_SIZE") or found["LOCAL_WORLD_SIZE"])
        found["OMP_NUM_THREADS"] = str(max(1, cores // ranks))
    listed = environment.get(_INTERFACES, "")
    if name := _interface([pair.partition("=")[::2] for pair in listed.split(",") if pair]):
        missing = [each for each in _BY_INTERFACE if each not in environment]
        found.update(dict.fromkeys(missing, name))
    return found


def _interface(listed):
    """The interface of this host among those of all: the one whose address is this host's."""
    for address, name in listed:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            try:
                own.bind((address, 0))
            except OSError:
                continue  # of another host
            return name
    return ""


def keep_output(folder, rank) -> None:
    """What this process writes from here on goes to ``folder/rank_N.log``, too, which only its user
    may read."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"rank_{rank}.log")
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"  # else what is there stays
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_first else 0), 0o600))
    for stream in (sys.stdout, sys.stderr):
        # It ends with its input and not before: what ends the job's processes is not for it.
        tee = subprocess.Popen(
            ["tee", "-a", path], stdin=subprocess.PIPE, stdout=stream, start_new_session=True
        )
        os.dup2(tee.stdin.fileno(), stream.fileno())
        tee.stdin.close()


if __name__ == "__main__":
    os.environ.update(variables(os.environ, len(os.sched_getaffinity(0))))
    os.environ.pop(_INTERFACES, None)
    if sys.argv[1]:
        keep_output(sys.argv[1], os.environ["RANK"])
    os.execv(sys.argv[2], sys.argv[2:])
