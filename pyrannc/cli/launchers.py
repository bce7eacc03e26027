"""Which launchers work on this machine, and what the others lack."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyrannc import launch


def examine(rows, problems, probe: str, deadline_s: float) -> bool:
    """Adds rows on torchrun, srun and the allocation that this process is in; returns whether two
    ranks of torchrun could exchange what ``probe`` (a script) sends."""
    import torch

    if not torch.distributed.is_available():
        rows.append(("torchrun", "this torch has no torch.distributed"))
        works = False
    else:
        time_ms, errors = _under_torchrun(probe, deadline_s)
        works = time_ms is not None
        rows.append(("torchrun", f"works, 1 MiB in {time_ms} ms" if works else "fails"))
        if not works:
            problems.append("two ranks of torchrun could not meet; they printed:\n" + errors)
    rows.append(("srun", _srun()))
    if "SLURM_JOB_ID" in os.environ:
        nodes = os.environ.get("SLURM_JOB_NODELIST", "hosts that are not named")
        rows.append(("allocation", f"job {os.environ['SLURM_JOB_ID']} of Slurm, on {nodes}"))
    return works


def _under_torchrun(probe, deadline_s):
    """Milliseconds, or None and what the ranks printed."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "probe.py"
        script.write_text(probe)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
            "--master-addr=localhost", f"--master-port={launch.free_port()}", str(script),
        ]  # fmt: skip
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=deadline_s,
                env=launch.environment(2),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, f"not finished after {deadline_s} s"
    if result.returncode != 0:
        return None, result.stderr.strip()[-2000:]
    return result.stdout.strip(), ""


def _srun() -> str:
    program = shutil.which("srun")
    if program is None:
        return "not found: no Slurm here"
    version, works = _output([program, "--version"])
    if not works:
        return f"{program}, which cannot be used: {version.splitlines()[-1]}"
    kinds = [word for word in _output([program, "--mpi=list"])[0].split() if word.startswith("pm")]
    found = ", ".join(kinds) or "no PMI, so ranks meet by Slurm's variables"
    return f"{version} ({program}); {found}"


def _output(command):
    """What a program prints, and whether its exit code is 0."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return (result.stdout + result.stderr).strip(), result.returncode == 0
