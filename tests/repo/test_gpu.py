"""What `make gpu-test` and its sisters run: on a GPU, and, to try the scripts, on the stand-in."""

import importlib.util
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
DEADLINE_S = 2400  # against hangs
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
# What a machine for training may lack; `hidden` is a folder before all others.
HIDE = """
import importlib.machinery
ABSENT = {
    "isal", "transformers", "accelerate", "lightning", "pytest", "safetensors", "rich", "typer"
}
find = importlib.machinery.PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    found = find(name, path, target)
    absent = name.partition(".")[0] in ABSENT and "site-packages" in str(found and found.origin)
    return None if absent else found

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
MAPPED = "from pyrannc import _C; print(open('/proc/self/maps').read())"
needs_mpi = pytest.mark.skipif(not _C.comm.mpi_available(), reason="this build has no MPI")


def module_of(path):
    """A script of tests/gpu, which are no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = module_of(ROOT / "tests" / "gpu" / "run.py")
bundle = module_of(ROOT / "tests" / "gpu" / "bundle.py")


def results():
    """What a GPU has left in docs/gpu."""
    return {file.name: file.read_text() for file in (ROOT / "docs" / "gpu").glob("*")}


def outcomes(*arguments, **environment):
    """By part, what came of it; and the exit code."""
    job = subprocess.run(
        [*RUN, *arguments],
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
    before = results()
    found, code = outcomes(name, TEST_DEVICE="standin", TEST_SMALL="1")
    assert found
    assert {part: outcome["text"] for part, outcome in found.items()} == dict.fromkeys(found, "")
    assert code == 0
    assert results() == before  # which is for what a GPU has run


@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
def test_parts_are_chosen_by_the_beginning_of_their_names():
    found, code = outcomes("test", "NCCL with", TEST_DEVICE="standin", TEST_SMALL="1")
    assert list(found) == ["NCCL with one rank"]
    assert code == 0, found


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_runs_and_nothing_is_written():
    before = results()
    found, code = outcomes("test")
    assert code == 1
    assert list(found) == ["this machine has no GPU that torch can use: nothing was run"]
    assert results() == before


def part(code):
    return lambda: ([sys.executable, "-c", code], dict(os.environ))


SHOWN = 'print(\'{"figures": {"a": 1}, "failures": []}\', flush=True)'


def test_a_part_that_ends_at_its_deadline_leaves_what_it_had():
    found = run.run("bench", 2, part(f"{SHOWN}\nimport time; time.sleep(600)"))
    assert not found["passed"]
    assert found["text"] == "not finished after 2 s"
    assert found["figures"]["a"] == 1


def test_a_part_that_dies_leaves_what_it_had_and_its_last_words():
    code = f"{SHOWN}\nimport sys; print('last words', file=sys.stderr)\nimport os; os._exit(3)"
    found = run.run("bench", 60, part(code))
    assert found["text"] == "exit code 3: last words"
    assert found["figures"]["a"] == 1


def test_a_line_of_two_ranks_that_has_mixed_is_a_failure_and_no_crash():
    mixed = SHOWN.replace("{", "{{", 1)
    found = run.run("bench", 60, part(f"{SHOWN}\n{mixed}"))
    assert found["text"].startswith("a line is no JSON")


def test_a_part_that_cannot_start_is_recorded():
    def absent():
        raise FileNotFoundError("mpirun was not found")

    assert run.run("bench", 60, absent)["text"] == "FileNotFoundError: mpirun was not found"
    assert run.run("bench", 60, part("pass"))["text"] == "exit code 0: nothing on stderr"


def test_every_script_of_the_lists_is_there():
    for name, parts in run.lists().items():
        for _, command in parts.values():
            scripts = [each for each in command()[0] if each.endswith(".py")]
            assert len(scripts) == 1 and Path(scripts[0]).is_file(), (name, scripts)


def test_a_bundle_is_for_one_release_of_python(tmp_path, monkeypatch):
    package = tmp_path / "pyrannc"
    package.mkdir()
    monkeypatch.setattr(bundle, "ROOT", tmp_path)
    (package / "_build_info.py").write_text('TORCH_VERSION = "2.11.0+cpu"\n')
    with pytest.raises(SystemExit, match="there are 0: none"):
        bundle.extension()
    (package / "_C.cpython-312-x86_64-linux-gnu.so").touch()
    assert bundle.extension()[1] == "Python 3.12, torch 2.11"
    (package / "_C.cpython-311-x86_64-linux-gnu.so").touch()
    with pytest.raises(SystemExit, match=r"there are 2: _C\.cpython-311"):
        bundle.extension()


@needs_mpi
@pytest.mark.all
def test_two_ranks_train_with_the_bundle(tmp_path):
    folder = tmp_path / "bundle"
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "bundle.py"), str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert made.returncode == 0, made.stderr
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = "from pyrannc.cli import main; main()"

    def printed(*arguments):
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

    assert printed(command, "run", "-n", "2", str(script)).count("trained on 2 ranks") == 2
    assert str(folder / "openmpi" / "lib" / "libmpi.so") in printed(MAPPED)


@pytest.mark.all
@pytest.mark.skipif(not standin.built(), reason="the stand-in device was not built")
def test_a_script_of_the_bundle_runs_with_nothing_but_torch_and_numpy(tmp_path):
    folder, hidden = tmp_path / "bundle", tmp_path / "hidden"
    bundle.make(folder)
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDE)
    job = subprocess.run(
        [folder / "run", sys.executable, "tests/gpu/bench/speed.py", "ResNet-50"],
        cwd=folder,
        env={
            "PATH": "/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": f"{hidden}:{folder / 'tests' / 'gpu'}",
            "TEST_DEVICE": "standin",
            "TEST_SMALL": "1",
            "STANDIN_LIBRARY": str(standin.LIBRARY),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    report = json.loads(job.stdout.splitlines()[-1])
    assert report["failures"] == [], job.stderr
    assert "predicted ms" in report["figures"]
