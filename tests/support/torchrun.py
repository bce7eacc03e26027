"""Runs a script on several ranks without MPI: under torchrun, or as processes with variables."""

import os
import subprocess
import sys
import textwrap

import mpi

from pyrannc import launch


def environment(ranks: int) -> dict[str, str]:
    paths = [str(mpi.ROOT), str(mpi.ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(path for path in paths if path)
    return launch.environment(ranks) | {"PYTHONPATH": path}


def run(program: str | list[str], ranks: int, folder, timeout=200) -> subprocess.CompletedProcess:
    """Runs Python under torchrun: source text, or a script with its arguments.

    ``folder``: for a file with the text. At the deadline torchrun is ended, and the test fails.
    """
    if isinstance(program, str):
        script = folder / "script.py"
        script.write_text(textwrap.dedent(program))
        program = [str(script)]
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}",
        "--master-addr=localhost", f"--master-port={mpi.free_port()}", *program,
    ]  # fmt: skip
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(ranks)
    )


def run_with_variables(program: str, variables: list[dict], timeout=200):
    """Processes of their own, one for each entry of ``variables``; their exit codes and texts."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(len(variables)) | each,
        )
        for each in variables
    ]
    try:
        return [(*each.communicate(timeout=timeout), each.returncode) for each in started]
    finally:
        for each in started:
            each.kill()
