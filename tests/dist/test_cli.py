"""``rannc run`` and ``rannc doctor``, each in real processes."""

import importlib
import subprocess
import sys

import mpi
import pytest

from pyrannc import launch

# The package has a command of the same name.
doctor = importlib.import_module("pyrannc.cli.doctor")

# One write: lines of ranks that print at the same time must not mix.
SHOW = """
import sys
from pyrannc import launch
sys.stdout.write(f"{launch.get_rank()} {sys.argv[1:]}\\n")
"""


def rannc(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", "from pyrannc.cli import main; main()", *args],
        capture_output=True,
        text=True,
        cwd=mpi.ROOT,
        timeout=120,
        **kwargs,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_run_starts_the_script_on_every_rank_with_its_arguments(tmp_path, ranks, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    result = rannc("run", "-n", str(ranks), str(script), "--steps", "3")
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    assert lines == [f"{rank} ['--steps', '3']" for rank in range(ranks)]


# `rannc run -n 4 train.py -n 10` started ten ranks of a script without arguments, and --help of the
# script showed that of rannc.
def test_what_follows_the_script_is_the_scripts(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    result = rannc("run", "-n", "2", str(script), "-n", "3", "--ranks", "1", "-bn", "4", "--help")
    assert result.returncode == 0, result.stderr
    arguments = ["-n", "3", "--ranks", "1", "-bn", "4", "--help"]
    assert sorted(result.stdout.splitlines()) == [f"{rank} {arguments}" for rank in range(2)]


def test_run_returns_the_exit_code_of_the_rank_that_failed(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, sys; sys.exit(5 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)"
    )
    assert rannc("run", "-n", "2", str(script)).returncode == 5


def test_ranks_on_other_hosts_get_the_variables_that_devices_go_by(monkeypatch):
    wanted = {"NCCL_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "1", "PYTORCH_ALLOC_CONF": "a"}
    for name, value in {**wanted, "TORCH_LOGS": "", "OTHER": "1"}.items():
        monkeypatch.setenv(name, value)
    command = launch.command(2, ["script"], launch.device_variables())
    handed = {command[at + 1] for at, part in enumerate(command) if part == "-x"}
    assert handed >= {f"{name}={value}" for name, value in wanted.items()} | {"TORCH_LOGS="}
    assert not any(each.startswith("OTHER") for each in handed)


def test_doctor_finds_a_machine_that_passes_these_tests_well(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    rows, problems = doctor.examine()
    assert problems == []
    found = dict(rows)
    assert found["MPI in this build"] == "yes"
    assert found["1 MiB between 2 ranks"].endswith(" ms")


def test_doctor_suggests_to_do_without_cma_only_where_that_helps(monkeypatch):
    monkeypatch.setattr(
        doctor, "exchange", lambda variables: ("3.1", "") if variables else (None, "Read -1")
    )
    _, problems = doctor.examine()
    assert len(problems) == 1
    assert "export OMPI_MCA_btl_vader_single_copy_mechanism=none" in problems[0]

    monkeypatch.setattr(doctor, "exchange", lambda variables: (None, "no such device"))
    _, problems = doctor.examine()
    assert len(problems) == 1
    assert "single_copy" not in problems[0]
    assert "no such device" in problems[0]
