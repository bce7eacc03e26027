"""Ranks of srun, of mpirun and torchrun within Slurm: on a Slurm of this machine alone."""

import subprocess
import sys

import pytest
import slurm
import torchrun

# Each line in one piece: print() writes its end apart where Python does not buffer.
SHOW = """
import os
from pyrannc import launch
from pyrannc.job import started
world = launch.world()
world.barrier()
os.write(1, f"rank {world.rank} of {world.size} over {started.by().transport}\\n".encode())
"""
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port={port}"]
CASES = {
    "srun": ("c10d", ["srun", "-n", "2", "python"]),
    "srun with PMIx": ("mpi", ["srun", "--mpi=pmix", "-n", "2", "python"]),
    "mpirun in an allocation": ("mpi", ["salloc", "-n", "2", "mpirun", "-n", "2", "python"]),
    "torchrun in srun": ("c10d", ["srun", "-n", "1", "python", *TORCHRUN]),
    "torchrun in srun with PMI-2": ("c10d", ["srun", "--mpi=pmi2", "-n", "1", "python", *TORCHRUN]),
    "torchrun in srun with PMIx": ("c10d", ["srun", "--mpi=pmix", "-n", "1", "python", *TORCHRUN]),
}
pytestmark = [
    pytest.mark.all,
    pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not()),
]


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    with slurm.running(tmp_path_factory.mktemp("slurm")) as found:
        yield torchrun.environment(2) | found


@pytest.mark.parametrize("case", CASES)
def test_ranks_meet(case, variables, tmp_path):
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    transport, command = CASES[case]
    words = {"python": sys.executable}
    command = [words.get(each, each).format(port=torchrun.mpi.free_port()) for each in command]
    done = subprocess.run(
        [*command, str(script)], env=variables, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [f"rank {rank} of 2 over {transport}" for rank in range(2)]
    assert sorted(line for line in done.stdout.splitlines() if line) == expected
