"""Runs a script on several ranks, with a deadline that nothing outlives."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from pyrannc import launch

ROOT = Path(__file__).resolve().parents[2]


def run(
    script: str | Path,
    ranks: int,
    *args: str,
    timeout: float = 120,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess:
    """Runs ``script``, a path or Python source, under ``mpirun`` from the repository's root.

    ``returncode`` is mpirun's. At the deadline every process is killed and the test fails with what
    was printed until then.
    """
    if isinstance(script, Path):
        argv = [sys.executable, str(script), *args]
    else:
        argv = [sys.executable, "-c", textwrap.dedent(script), *args]
    variables = launch.environment(ranks) | (env or {})
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
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
            _kill(process.pid)
            process.wait()
            raise AssertionError(
                f"not finished after {timeout} s; until then:\n{_text(out)}{_text(err)}"
            ) from None
        return subprocess.CompletedProcess(argv, process.returncode, _text(out), _text(err))


def _text(file) -> str:
    file.seek(0)
    return file.read()


def _kill(mpirun: int) -> None:
    """Kills mpirun and its ranks, each of which is a process group of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has just ended
                continue
            if parent == mpirun:
                os.kill(int(entry.name), signal.SIGKILL)
    os.killpg(mpirun, signal.SIGKILL)
