"""``rannc run``: a script on several ranks."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

from pyrannc import files, launch
from pyrannc.cli import places
from pyrannc.cli.hosts import Unreachable

#: Between two looks at mpirun, of which three in a row have to find its job over.
#: tuned by: a deadline: the other processes of a host that dies while a job ends are gone in 30 s.
#: without it: mpirun waits for a host that has gone for a quarter of an hour, as TCP does.
_LOOK_S = 3
#: For what ranks do at SIGTERM, such as saving.
#: tuned by: what others allow: torchrun as much, batch systems about as much.
#: without it: mpirun leaves ranks one second, which is too short for a checkpoint.
_TO_SAVE_S = 30


def run(
    ranks: int,
    command: list[str],
    hosts: str = "",
    hostfile: str = "",
    log_dir: str = "",
    max_restarts: int = 0,
    variables: tuple[str, ...] = (),
    min_hosts: int = 0,
) -> int:
    """Runs the Python script ``command[0]`` with its arguments on ``ranks`` ranks of this machine.

    Under a host list of the batch system (Slurm, PBS) Open MPI spreads the ranks over its hosts,
    or over ``hosts`` (``a:2,b:2``) or those of ``hostfile``. On every host ranks get this process's
    settings (RANNC_*), its variables of devices (NCCL_*, CUDA_*, PYTORCH_*, TORCH_*), and those
    named in ``variables``. They find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
    and MASTER_PORT, as under torchrun, and in OMP_NUM_THREADS their share of their host's cores.
    What rank 3 writes goes to ``log_dir/rank_3.log``, too, on its host.

    Of several networks between the hosts, MPI, Gloo and NCCL use the fastest one that they reach
    each other by, unless the environment names one.

    A job that fails is started again, at most ``max_restarts`` times, with the number of the start
    in TORCHELASTIC_RESTART_COUNT, as torchrun does; its script goes on from what it has saved.
    Hosts that have gone are waited for; where ``min_hosts`` are left, the job soon goes on on them.

    Returns:
        The exit code of the last start: that of the first rank that failed, or 0.
    """
    try:
        if log_dir:
            files.check_folder(log_dir)
            log_dir = os.path.abspath(log_dir)
    except OSError as error:
        print(f"rannc run: --log-dir {log_dir}: {error.strerror}", file=sys.stderr)
        return 2
    script = command[0]  # with hosts, perhaps one of theirs; "-m" is none
    if not hosts and not hostfile and not script.startswith("-") and not os.path.exists(script):
        print(f"rannc run: {script}: No such file or directory", file=sys.stderr)
        return 2
    missing = [name for name in variables if name not in os.environ]
    if missing:
        print(f"rannc run: --env {missing[0]}: there is no such variable here", file=sys.stderr)
        return 2
    return _starts(places.Places(ranks, hosts, hostfile, min_hosts), command, log_dir,
                   max_restarts, variables)  # fmt: skip


def _starts(where, command, log_dir, max_restarts, variables):
    """The exit code of the last start."""
    for restart in range(max_restarts + 1):
        counts = {"RESTART_COUNT": restart, "MAX_RESTARTS": max_restarts} if max_restarts else {}
        added = {f"TORCHELASTIC_{name}": str(value) for name, value in counts.items()}
        try:
            place = where.again() if restart else where.first()
            code, interrupted = _started(place, command, log_dir, added, variables)
        except (FileNotFoundError, Unreachable) as error:
            print(f"rannc run: {error}", file=sys.stderr)
            return 127 if isinstance(error, FileNotFoundError) else 1
        except KeyboardInterrupt:
            return 130
        if code == 0 or interrupted or restart == max_restarts:
            return code
        print(
            f"rannc run: the job has ended with exit code {code}, and is started again "
            f"(restart {restart + 1} of {max_restarts})",
            file=sys.stderr,
        )
    return code


def _started(place, command, log_dir, added, names):
    """The exit code of one start, and whether the terminal or SIGTERM has ended it; ``added`` are
    variables that are set in its ranks, ``names`` those that they get beside the usual ones."""
    rank = str(Path(__file__).with_name("rank.py"))
    argv = [sys.executable, "-IS", rank, log_dir, sys.executable, *command]
    meeting = launch.meeting_place(os.environ, place.hosts, place.hostfile)
    added = added | meeting | place.variables
    environment = launch.environment(place.ranks) | added
    if "OMP_NUM_THREADS" not in os.environ:
        del environment["OMP_NUM_THREADS"]  # each rank knows how many share its host
    listed = (("--host", place.hosts), ("--hostfile", place.hostfile))
    options = [part for name, value in listed if value for part in (name, value)]
    if place.ranks > 1 or options:
        everywhere = launch.variables_of_ranks(environment, names) | added
        argv = launch.command(place.ranks, argv, everywhere, options)
    if log_dir or not sys.stdout.isatty():
        # mpirun gives its ranks a terminal whatever its own output is: no progress bars in a file.
        environment["TERM"] = "dumb"
    elif sys.stderr.isatty():
        # mpirun reads the ranks' stderr through pipes; what they draw goes to this terminal.
        width = shutil.get_terminal_size().columns
        environment.setdefault("RANNC_TERMINAL_WIDTH", str(width))
    process = subprocess.Popen(argv, env=environment)
    interrupted = False
    looks = 0  # in a row that have found the job over
    with _handing_on(process) as ended:
        while True:
            try:
                code = process.wait(_LOOK_S if place.asked else None)
            except subprocess.TimeoutExpired:
                looks = looks + 1 if place.is_over(process.pid) else 0
                if looks == 3:
                    process.kill()
                continue
            except KeyboardInterrupt:
                interrupted = True  # the terminal has told the job, too; its end is worth the wait
                continue
            # A signal that ended the process, in the way of a shell.
            return code if code >= 0 else 128 - code, interrupted or bool(ended)


@contextmanager
def _handing_on(process):
    """What ends this process alone (kill, a batch system, a container that stops) ends the job,
    whose ranks would go on without it. Gives the signals that have come."""
    ended = []
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    def hand_on(number, _):
        ranks = _ranks_here(process.pid) if number == signal.SIGTERM and not ended else []
        ended.append(number)
        for rank in ranks:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(rank, number)
        if ranks:
            late.start()
        else:
            process.send_signal(number)

    # mpirun leaves its ranks a second between SIGTERM and SIGKILL.
    late = threading.Timer(_TO_SAVE_S, process.send_signal, (signal.SIGTERM,))
    late.daemon = True

    before = {
        number: signal.signal(number, hand_on)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield ended
    finally:
        late.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _ranks_here(mpirun) -> list[int]:
    """Processes that it has started itself, and not by ssh; none of another command."""
    children = Path(f"/proc/{mpirun}/task/{mpirun}/children")
    found = []
    with suppress(OSError):  # it has just ended, or one of them has
        for child in children.read_text().split():
            if b"OMPI_COMM_WORLD_RANK=" in Path(f"/proc/{child}/environ").read_bytes():
                found.append(int(child))
    return found
