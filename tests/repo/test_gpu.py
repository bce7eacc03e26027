"""What `make gpu-test` and its sisters run: on a GPU, and, to try the scripts, on the stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import standin
import torch

from pyrannc import _C

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, str(ROOT / "tests" / "gpu" / "run.py")]
LISTS = ["test", "bench", "memory"]
DEADLINE_S = 600  # against hangs
TRAIN = """
import sys
import torch
import pyrannc
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(partition_num=2, calibrate=False))
losses = []
for _ in range(5):
    loss = model(torch.ones(4, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0]
sys.stdout.write(f"trained on {pyrannc.get_world_size()} ranks\\n")  # one write: lines do not mix
"""
MAPPED = "from pyrannc import _C; print(open('/proc/self/maps').read())"
needs_mpi = pytest.mark.skipif(not _C.comm.mpi_available(), reason="this build has no MPI")


def outcomes(name, **environment):
    """By part, what came of it; and the exit code."""
    job = subprocess.run(
        [*RUN, name],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    found = {}
    for line in job.stdout.splitlines():
        part, brace, outcome = line.partition(" {")
        found[part] = json.loads(brace + outcome) if brace else line
    return found, job.returncode


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU for torch")
@pytest.mark.parametrize("name", LISTS)
def test_every_part_passes_on_the_gpu(name):
    found, code = outcomes(name)
    assert code == 0, found


@needs_mpi
@pytest.mark.all
@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
@pytest.mark.parametrize("name", LISTS)
def test_every_script_runs_on_the_stand_in_device(name):
    found, code = outcomes(name, TEST_DEVICE="standin", TEST_SMALL="1")
    assert found
    assert {part: outcome["text"] for part, outcome in found.items()} == dict.fromkeys(found, "")
    assert code == 0
    assert not (ROOT / "docs" / "gpu").exists()  # which is for what a GPU has run


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_runs_and_nothing_is_written():
    found, code = outcomes("test")
    assert code == 1
    assert list(found) == ["this machine has no GPU that torch can use: nothing was run"]
    assert not (ROOT / "docs" / "gpu").exists()


@needs_mpi
@pytest.mark.all
def test_two_ranks_train_with_nothing_but_the_bundle_python_and_torch(tmp_path):
    folder = tmp_path / "bundle"
    bundle = [sys.executable, str(ROOT / "tests" / "gpu" / "bundle.py"), str(folder)]
    made = subprocess.run(bundle, capture_output=True, text=True, timeout=DEADLINE_S)
    assert made.returncode == 0, made.stderr
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = "from pyrannc.cli import main; main()"

    def run(*arguments):
        job = subprocess.run(
            [folder / "run", sys.executable, "-c", *arguments],
            cwd=tmp_path,
            env={"PATH": "/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert job.returncode == 0, job.stdout + job.stderr
        return job.stdout

    assert run(command, "run", "-n", "2", str(script)).count("trained on 2 ranks") == 2
    assert str(folder / "openmpi" / "lib" / "libmpi.so") in run(MAPPED)
