"""``rannc run``: a script on several ranks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyrannc import files, launch


def run(
    ranks: int, command: list[str], hosts: str = "", hostfile: str = "", log_dir: str = ""
) -> int:
    """Runs the Python script ``command[0]`` with its arguments on ``ranks`` ranks of this machine.

    Under a host list of the batch system (Slurm, PBS) Open MPI spreads the ranks over its hosts,
    or over ``hosts`` (``a:2,b:2``) or those of ``hostfile``. They get this process's variables of
    devices (NCCL_*, CUDA_*, PYTORCH_*, TORCH_*). Ranks find RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun. What rank 3 writes goes to
    ``log_dir/rank_3.log``, too, on its host.

    Returns:
        The exit code of the job: that of the first rank that failed, or 0.
    """
    try:
        if log_dir:
            files.check_folder(log_dir)
            log_dir = os.path.abspath(log_dir)
    except OSError as error:
        print(f"rannc run: --log-dir {log_dir}: {error.strerror}", file=sys.stderr)
        return 2
    rank = str(Path(__file__).with_name("rank.py"))
    argv = [sys.executable, "-IS", rank, log_dir, sys.executable, *command]
    meeting = launch.meeting_place(os.environ, hosts, hostfile)
    options = [part for name, value in (("--host", hosts), ("--hostfile", hostfile)) if value
               for part in (name, value)]  # fmt: skip
    try:
        if ranks > 1 or options:
            argv = launch.command(ranks, argv, launch.device_variables() | meeting, options)
    except FileNotFoundError as error:
        print(f"rannc run: {error}", file=sys.stderr)
        return 127
    environment = launch.environment(ranks) | meeting
    if log_dir or not sys.stdout.isatty():
        # mpirun gives its ranks a terminal whatever its own output is: no progress bars in a file.
        environment["TERM"] = "dumb"
    elif sys.stderr.isatty():
        # mpirun reads the ranks' stderr through pipes; what they draw goes to this terminal.
        width = shutil.get_terminal_size().columns
        environment.setdefault("RANNC_TERMINAL_WIDTH", str(width))
    process = subprocess.Popen(argv, env=environment)
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the terminal has told the job, too; its end is worth waiting for
        # A signal that ended the process, in the way of a shell.
        return code if code >= 0 else 128 - code
