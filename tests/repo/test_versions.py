"""Every supported release of torch, under different Pythons: the same sources are built
there, and pass the tests of what leans on torch's names and ways.

Each gets an environment in .venvs that later runs use again; it takes up to 8 GB, because a torch
that was built for CUDA needs CUDA's libraries to be imported, with a GPU or without.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.all

COMBINATIONS = [
    ("3.11", "2.11"),
    ("3.12", "2.12"),
    ("3.13", "2.13"),
    ("3.11", "2.14"),
    ("3.13", "2.15"),
]
#: Where pip is capped below a release by its configuration, an empty file of constraints lifts it.
UNCAPPED = {"PIP_CONSTRAINT": os.devnull}
DISK_BYTES = 10 * 2**30  # what installing takes at its peak, with a margin
TESTS = (
    "tests/python",
    "tests/torch/accelerator/backend",
    *(
        f"tests/torch/{name}"
        for name in ("capture", "ops", "optimizer", "runtime", "state", "wrapper")
    ),
    *(f"tests/dist/test_{name}.py" for name in ("device_equality", "habits")),
)
DEVICES = ("standin", "bare", "standin_nccl")  # what the tests of devices load


def run(*command, cwd=ROOT, env=None, timeout=3600):
    """The exit code, and the end of what was printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=os.environ | (env or {}), timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout[-8000:]


def interpreter(version):
    """A working ``python3.12``, on the path or of pyenv; None when there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in (f"python{version}", *sorted(root.glob(f"versions/{version}.*/bin/python"))):
        if shutil.which(candidate) and run(candidate, "-c", "import ensurepip")[0] == 0:
            return candidate
    return None


def environment(python_version, torch_version):
    """The Python of an environment with this torch; the test is skipped when that cannot be had."""
    folder = ROOT / ".venvs" / f"python{python_version}-torch{torch_version}"
    python = folder / "bin" / "python"
    wanted = f"import torch; assert torch.__version__.startswith('{torch_version}.')"
    if python.exists() and run(python, "-c", wanted)[0] == 0:
        return python
    base = interpreter(python_version)
    if base is None:
        pytest.skip(f"Python {python_version} is not installed")
    folder.parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < DISK_BYTES:
        pytest.skip(f"{free / 2**30:.1f} GiB of disk are free, but this takes up to 10")
    code, output = run(base, "-m", "venv", "--clear", folder)
    assert code == 0, output
    # torch first, as in the Makefile.
    packages = (f"torch=={torch_version}.*", "setuptools", "wheel")
    code, output = run(
        python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages, env=UNCAPPED
    )
    if code != 0:
        pytest.skip(f"torch {torch_version} could not be installed: {output.splitlines()[-1]}")
    code, output = run(python, "-c", wanted)
    assert code == 0, output
    return python


def copy_of_the_sources(folder):
    """The tracked files in a tree of their own: the extension lands among them."""
    shutil.rmtree(folder, ignore_errors=True)
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    for name in filter(None, names):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


@pytest.mark.parametrize("python_version, torch_version", COMBINATIONS)
def test_another_python_and_torch_build_and_pass_the_tests(python_version, torch_version):
    python = environment(python_version, torch_version)
    tree = copy_of_the_sources(python.parents[1] / "tree")
    cache = {
        "CCACHE_BASEDIR": str(tree),
        "CCACHE_NOHASHDIR": "1",
        "PYTHONPATH": "",
        **UNCAPPED,
        "PYRANNC_CMAKE_OPTIONS": "-DRANNC_TESTS=ON",
    }
    code, output = run(
        python, "-m", "pip", "install", "--quiet", "--no-build-isolation", "-e", f"{tree}[test]",
        env=cache,
    )  # fmt: skip
    assert code == 0, output
    code, output = run("cmake", "--build", tree / "build", "--target", *DEVICES, env=cache)
    assert code == 0, output
    code, output = run(
        python, "-m", "pytest", "-q", "-m", "not all", *TESTS, cwd=tree, env={"PYTHONPATH": ""}
    )
    assert code == 0, output
