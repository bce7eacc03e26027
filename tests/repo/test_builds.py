"""The other ways to build: the core alone, with and without MPI, sanitizers, and a wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from pyrannc import launch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.all


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=3600, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}{done.stderr[-5000:]}"
    return done.stdout


@pytest.fixture
def folder():
    """An empty build folder beside `build`: from there paths look the same to ccache."""
    path = ROOT / "build-test"
    shutil.rmtree(path, ignore_errors=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("mpi", ["ON", "OFF"])
def test_the_core_builds_and_passes_its_tests_without_torch(mpi, folder):
    options = ["-DRANNC_TORCH=OFF", f"-DRANNC_MPI={mpi}"]
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder)
    run("ctest", "--test-dir", folder, "-j2", "--output-on-failure", "--no-tests=error")
    commands = (folder / "build.ninja").read_text()
    assert "site-packages" not in commands and ("mpi/progress.cpp" in commands) == (mpi == "ON")


def test_the_sanitizers_of_addresses_and_undefined_behaviour_find_nothing_in_the_core(folder):
    """All tests of the core. ``make sanitize``."""
    options = ["-DRANNC_TORCH=OFF", "-DRANNC_SANITIZE=address,undefined"]
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder)
    assert "__asan_init" in run("nm", "-D", folder / "tests" / "core" / "comm" / "comm_test")
    run(
        "ctest", "--test-dir", folder, "-j2", "--output-on-failure", "--no-tests=error",
        # A test counts memory, and what was freed is kept to find late uses: here a little of it.
        env=os.environ
        | {"UBSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "quarantine_size_mb=16"},
    )  # fmt: skip


@pytest.mark.parametrize("mpi", [False, True])
def test_the_thread_sanitizer_finds_no_race_in_what_runs_a_plan(mpi, folder, tmp_path):
    """Rank threads, and processes with the thread that talks to MPI. ``make sanitize``.

    torch, Python and MPI are not instrumented: what the sanitizer sees of them is their locks.
    """
    package = folder / "package" / "pyrannc"
    options = [f"-DRANNC_PACKAGE={package}", "-DRANNC_SANITIZE=thread"]
    options.append(f"-DPython3_EXECUTABLE={sys.executable}")
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder, "--target", "_C")
    for path in run("git", "ls-files", "pyrannc/*.py", cwd=ROOT).split():
        (package.parent / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, package.parent / path)
    reports = tmp_path / "report"

    def found(*arguments):
        """What Python with these arguments prints, and what the sanitizer reports."""
        suppressions = ROOT / "tests" / "torch" / "tsan.supp"
        variables = {
            "PYTHONPATH": package.parent,
            "OMP_NUM_THREADS": "1",
            "TSAN_OPTIONS": f"history_size=7 exitcode=0 log_path={reports} "
            f"suppressions={suppressions} print_suppressions=0",
            "RANNC_PROFILE_CACHE": "off",
        }
        library = run("c++", "-print-file-name=libtsan.so").strip()
        # -P: not the package of this folder. Only Python itself, not mpirun, gets the library.
        command = ["env", f"LD_PRELOAD={library}", sys.executable, "-P", *arguments]
        if mpi:
            variables = launch.environment(4) | variables
            command = launch.command(4, command)
        done = run(*command, cwd=ROOT, env=os.environ | {k: str(v) for k, v in variables.items()})
        texts = [path.read_text() for path in tmp_path.glob("report*")]
        for path in tmp_path.glob("report*"):
            path.unlink()
        return done, "".join(texts)

    if mpi:
        done, text = found("tests/dist/loops.py", "2+2/1f1b", "2+2/gpipe")
        assert done.count('"failures": []}') == done.count('{"case"') > 40, done[-3000:]
    else:
        assert "KeptGradients::drop" in found("tests/torch/race.py")[1]
        names = ["executor", "schedules", "gradient_sums", "sync_batch_norm", "keyed_draws"]
        files = [f"tests/torch/test_{name}.py" for name in names]
        pytest_options = ["-q", "-p", "no:cacheprovider", "-o", f"pythonpath={package.parent}"]
        _, text = found("-m", "pytest", *pytest_options, "-m", "not all", *files)
    assert not text, text[:5000]


STEP = """
import pathlib, sys, torch, pyrannc
assert pathlib.Path(pyrannc.__file__).is_relative_to(sys.prefix), pyrannc.__file__
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
before = model.weight.detach().clone()
module = pyrannc.RaNNCModule(model, optimizer)
x = torch.randn(6, 4)
module(x).sum().backward()
optimizer.step()
# The gradient of a sum is the sum of the inputs, for each output.
torch.testing.assert_close(module.state_dict()["weight"], before - 0.5 * x.sum(0).expand(3, 4))
print("stepped")
"""


def test_a_wheel_trains_in_a_clean_environment_and_the_source_tree_stays_as_it_was(tmp_path):
    shutil.rmtree(ROOT / "build-wheel", ignore_errors=True)
    stray = {path: path.stat().st_mtime_ns for path in (ROOT / "pyrannc").glob("_*.*")}
    run(
        sys.executable, "-m", "pip", "wheel", ROOT, "--no-build-isolation", "--no-deps", "-w",
        tmp_path, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "pyrannc").glob("_*.*")} == stray

    (wheel,) = tmp_path.glob("pyrannc-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = run("git", "ls-files", "pyrannc", cwd=ROOT).split()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert packed == {
        *sources,
        f"pyrannc/_C{suffix}",
        "pyrannc/_build_info.py",
        "pyrannc/rannc-plan",
    }

    # The environment has the wheel, and torch by a path to where it is installed already. Only
    # after the wheel, or pip would find this project's editable install there and be content.
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel
    )
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert "stepped" in run(python, "-c", STEP, cwd=tmp_path, env=clean)
    assert "doctor" in run(python.with_name("rannc"), "--help", cwd=tmp_path, env=clean)
