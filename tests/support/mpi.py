"""Runs a script on several ranks, with a deadline that nothing outlives."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import forked_ranks

from pyrannc import launch

ROOT = Path(__file__).resolve().parents[2]
JOBS = Path(__file__).with_name("jobs")
_ONE_PARENT = threading.Lock()  # of ranks of tests that run side by side


def run(
    program: str | list[str],
    ranks: int,
    timeout: float = 120,
    env: dict[str, str] | None = None,
    forked: bool = True,
) -> subprocess.CompletedProcess:
    """Runs Python on ``ranks`` ranks: source text, or a list of arguments (a script and its own).

    ``returncode`` is mpirun's. At the deadline every process is killed and the test fails with what
    was printed until then. ``forked``: the ranks may start with the libraries loaded, as
    :mod:`forked_ranks` says; not for what looks at the memory of whole processes.
    """
    if isinstance(program, str):
        program = ["-c", textwrap.dedent(program)]
    argv = [sys.executable, *program]
    if forked:
        with _ONE_PARENT:
            address = _parent().address
        argv = [sys.executable, "-IS", forked_ranks.__file__, address, *program]
    variables = _environment(ranks) | (env or {})
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            launch.command(ranks, argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=variables,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            kill(process.pid)
            process.wait()
            raise AssertionError(
                f"not finished after {timeout} s; until then:\n{_text(out)}{_text(err)}"
            ) from None
        return subprocess.CompletedProcess(argv, process.returncode, _text(out), _text(err))


def _environment(ranks: int) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(path for path in paths if path)
    return launch.environment(ranks) | {"PYTHONPATH": path}


@functools.cache
def _parent() -> forked_ranks.Parent:
    """For ranks of more than one; its folder is removed when the tests end."""
    folder = tempfile.TemporaryDirectory()
    parent = forked_ranks.Parent(_environment(2), folder.name)
    parent.folder = folder
    return parent


def without_leaks_of_triton(text: str) -> str:
    """What triton prints when Python ends, in builds of torch for CUDA from 2.15 on, left out."""
    return re.sub(r"nanobind: leaked .*?refleaks\.html\s*", "", text, flags=re.DOTALL)


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def _text(file) -> str:
    file.seek(0)
    return file.read()


def kill(mpirun: int) -> None:
    """Kills mpirun and its ranks, each of which is a process group of its own."""
    for child in children(mpirun):
        os.kill(child, signal.SIGKILL)
    os.killpg(mpirun, signal.SIGKILL)


def children(process: int) -> list[int]:
    """Processes that it has started and that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has just ended
                continue
            if parent == process:
                found.append(int(entry.name))
    return found
