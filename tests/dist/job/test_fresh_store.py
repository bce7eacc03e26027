"""A rank dies at night: the job is started again, and goes on."""

import json
import subprocess
import sys

import mpi
import pytest
import torchrun

JOB = str(mpi.JOBS / "started_again.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
STARTS = {
    "rannc run": [sys.executable, "-c", "from pyrannc.cli import main; main()", "run", "-n", "2"],
    # It keeps one store for all its starts, at a port that is given or where it finds one.
    "torchrun": [*TORCHRUN, "--master-port={port}"],
    "torchrun --standalone": [*TORCHRUN, "--standalone"],
}


def losses(command, folder):
    """The loss of each step, and the start in which it was computed."""
    folder.mkdir()
    done = subprocess.run(
        [each.format(port=mpi.free_port()) for each in command] + [JOB, str(folder)],
        env=torchrun.environment(2), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "losses.json").read_text())
    return zip(*found, strict=True)


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("rannc run", marks=pytest.mark.all),
        pytest.param("torchrun", marks=pytest.mark.all),
        "torchrun --standalone",
    ],
)
def test_a_job_that_fails_twice_has_the_losses_of_one_that_does_not(launcher, tmp_path):
    expected, _ = losses([sys.executable], tmp_path / "one")
    command = STARTS[launcher]
    found, starts = losses([*command, "--max-restarts=2"], tmp_path / "several")
    assert starts == (0, 0, 0, 0, 1, 1, 2, 2, 2)
    assert found == pytest.approx(expected, rel=1e-5)
