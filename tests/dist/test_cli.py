"""``rannc run`` and ``rannc doctor``, each in real processes."""

import importlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mpi
import pytest

from pyrannc import _C, launch
from pyrannc.errors import CommError

# The package has a command of the same name.
doctor = importlib.import_module("pyrannc.cli.doctor")

# One write: lines of ranks that print at the same time must not mix.
SHOW = """
import sys
from pyrannc import _C, launch
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


def test_a_number_of_ranks_behind_the_script_alone_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    for late in ("-n", "-np"):
        result = rannc("run", str(script), late, "4")
        assert result.returncode == 2 and not result.stdout
        assert "stands after the script" in result.stderr
    result = rannc("run", "-np", "1", str(script), "-n", "4")
    assert result.stdout == "0 ['-n', '4']\n", result.stderr


# mpirun of Open MPI 4 refused to start in containers, which have no program for other hosts.
def test_ranks_start_where_there_is_no_ssh(tmp_path, monkeypatch):
    for name in filter(shutil.which, ("mpirun", "orted", "prte", "prted", "prterun")):
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    result = rannc("run", "-n", "2", str(script))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["0 []", "1 []"]


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


def test_ranks_find_the_variables_of_torchrun(tmp_path, monkeypatch):
    """torch's own rendezvous takes them; what is set already stays."""
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "7")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "meet.py"
    script.write_text(
        """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
found = [None] * dist.get_world_size()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
dist.all_gather_object(found, [os.environ.get(name) for name in names])
if dist.get_rank() == 0:
    print(found, sys.argv[0].endswith("meet.py"), "pyrannc" in sys.modules)
dist.barrier()
dist.destroy_process_group()
"""
    )
    for ranks in (1, 2):
        result = rannc("run", "-n", str(ranks), str(script))
        assert result.returncode == 0, result.stderr
        expected = [[str(rank), str(ranks), str(rank), "7", str(rank)] for rank in range(ranks)]
        if ranks == 1:
            expected[0][-1] = None  # no mpirun
        assert result.stdout.strip() == f"{expected} True False"


def comes_to(read, wanted):
    """What ``read()`` gives once that is ``wanted``, or after a while: what writes the files of
    ranks ends with its input, and that may be after the job."""
    end = time.monotonic() + 30
    while read() != wanted and time.monotonic() < end:
        time.sleep(0.02)
    return read()


def test_what_each_rank_writes_goes_to_a_file_of_its_own_too(tmp_path):
    script = tmp_path / "say.py"
    script.write_text(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "sys.stdout.write(f'out of {rank}\\n')\n"
        "sys.stdout.flush()\n"
        "if rank == '1':\n"
        "    os.write(2, b'error of 1\\n')\n"  # in one piece: lines of two streams must not mix
        "    sys.exit(1)\n"
    )
    for ranks in ("1", "2"):
        folder = tmp_path / "new" / ranks
        done = rannc("run", "-n", ranks, "--log-dir", str(folder), str(script))
        assert done.returncode == int(ranks) - 1, done.stderr
        assert "out of 0\n" in done.stdout
        assert comes_to((folder / "rank_0.log").read_text, "out of 0\n") == "out of 0\n"
        modes = [each.stat().st_mode & 0o777 for each in (folder, folder / "rank_0.log")]
        assert modes == [0o700, 0o600]
    assert "error of 1\n" in done.stderr
    lines = ["error of 1", "out of 1"]  # two streams, in the order of their arrival

    def found():
        return sorted((folder / "rank_1.log").read_text().splitlines())

    assert comes_to(found, lines) == lines
    done = rannc("run", "--log-dir", str(script), str(script))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"rannc run: --log-dir {script}: Not a directory\n"


@pytest.mark.parametrize(
    ("environment", "hosts", "expected"),
    [
        ({}, "", "localhost"),
        ({}, "a1:2,b2:2", "a1"),
        ({"SLURM_JOB_NODELIST": "n[03,05]", "SLURM_JOB_NUM_NODES": "2"}, "", "n03"),
        ({"SLURM_JOB_NODELIST": "n03", "SLURM_JOB_NUM_NODES": "1"}, "", "localhost"),
        ({"MASTER_ADDR": "other", "MASTER_PORT": "1234"}, "a1:2", "other"),
    ],
)
def test_ranks_meet_at_the_first_host(environment, hosts, expected):
    found = launch.meeting_place(environment, hosts)
    assert found["MASTER_ADDR"] == expected
    assert found["MASTER_PORT"] == environment.get("MASTER_PORT", found["MASTER_PORT"])
    assert int(found["MASTER_PORT"]) > 1000


def test_ranks_meet_at_the_first_host_of_a_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the first\n\nc3 slots=2\nd4\n")
    assert launch.meeting_place({}, "", str(file))["MASTER_ADDR"] == "c3"
    assert launch.meeting_place({"PBS_NODEFILE": str(file)})["MASTER_ADDR"] == "c3"


def test_run_returns_the_exit_code_of_the_rank_that_failed(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, sys; sys.exit(5 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)"
    )
    assert rannc("run", "-n", "2", str(script)).returncode == 5


# mpirun left ranks a second for what they do at SIGTERM.
SAVES = """
import signal, sys
def save(*_):
    time.sleep(4)
    path.write_text("saved")
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
"""


@pytest.mark.parametrize(("ranks", "saves"), [("1", ""), ("2", ""), ("2", SAVES)])
def test_what_ends_rannc_run_ends_its_ranks(tmp_path, ranks, saves):
    """As a batch system does, or a container that stops: only the first process is told."""
    script = tmp_path / "wait.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"path = pathlib.Path({str(tmp_path)!r}, os.environ['RANK'])\n"
        f"{saves}path.write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    arguments = ["run", "-n", ranks, "--max-restarts", "1", str(script)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from pyrannc.cli import main; main()", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    files = [tmp_path / str(rank) for rank in range(int(ranks))]
    written = [True] * len(files)
    assert comes_to(lambda: [file.exists() and file.read_text() != "" for file in files], written)
    pids = [int(file.read_text()) for file in files]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) not in (0, None)
    gone = [False] * len(pids)
    assert comes_to(lambda: [Path(f"/proc/{pid}").exists() for pid in pids], gone) == gone
    assert not saves or [file.read_text() for file in files] == ["saved"] * len(files)


def test_a_script_that_is_not_there_is_one_line():
    done = rannc("run", "-n", "2", "nowhere.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rannc run: nowhere.py: No such file or directory\n"


def test_a_job_that_fails_is_started_again_as_often_as_is_allowed(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, sys; start = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "os.write(1, f'start {start} of rank {os.environ[\"RANK\"]}\\n'.encode())\n"
        "sys.exit(3 if start < sys.argv[1] else 0)\n"
    )
    logs = tmp_path / "logs"
    for fails, code, starts in (("2", 0, 3), ("9", 3, 4)):
        options = ["-n", "2", "--max-restarts", "3", "--log-dir", str(logs)]
        result = rannc("run", *options, str(script), fails)
        assert result.returncode == code, result.stderr
        assert result.stderr.count("is started again (restart ") == starts - 1
        assert "exit code 3, and is started again (restart 2 of 3)" in result.stderr
        # A rank may be ended by another one's exit before it has written.
        wanted = {f"start {start} of rank" for start in range(starts)}

        def found(wanted=wanted):
            files = logs / "rank_0.log", logs / "rank_1.log"
            written = "".join(file.read_text() for file in files)
            return {each for each in wanted if each in written}

        assert comes_to(found, wanted) == wanted
    assert rannc("run", str(script), "0").returncode == 1  # the variable is not there


def test_ranks_on_other_hosts_get_settings_and_the_variables_that_devices_go_by():
    wanted = {"NCCL_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "1", "PYTORCH_ALLOC_CONF": "a"}
    wanted |= {"TORCH_LOGS": "", "RANNC_SCHEDULE": "gpipe", "PYTHONHASHSEED": "0", "MINE": "2"}
    found = launch.variables_of_ranks({**wanted, "OTHER": "1"}, ["MINE"])
    assert found == wanted
    command = launch.command(2, ["script"], found)
    handed = {command[at + 1] for at, part in enumerate(command) if part == "-x"}
    assert handed == set(wanted)  # without their values: ps shows a command to every user


def test_doctor_finds_a_machine_that_passes_these_tests_well(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(mpi.ROOT))
    rows, problems = doctor.examine()
    assert problems == []
    found = dict(rows)
    assert found["MPI"].startswith("Open MPI v") and "libmpi.so" in found["MPI"]
    assert found["1 MiB between 2 ranks"].endswith(" ms")
    assert found["torchrun"].startswith("works, 1 MiB in ")
    if shutil.which("srun") is None:
        assert found["srun"] == "not found: no Slurm here"
    else:
        assert found["srun"].startswith("slurm") or "cannot be used: srun: " in found["srun"]


def test_doctor_of_a_machine_without_mpi_asks_for_it_only_where_torchrun_fails_too(monkeypatch):
    def refuse():
        raise CommError("MPI cannot be opened\n  Load a module.")

    monkeypatch.setattr(_C.comm, "mpi_version", refuse)
    for works in (True, False):
        monkeypatch.setattr(
            doctor.launchers,
            "_under_torchrun",
            lambda *_, works=works: ("0.1", "") if works else (None, "no way"),
        )
        rows, problems = doctor.examine()
        assert dict(rows)["MPI"] == "none: MPI cannot be opened"
        assert len(problems) == (0 if works else 2)
        assert works or "no way" in problems[0]
        assert works or problems[1].endswith(f"Load a module.\n  {doctor.NO_RANKS}")


def test_doctor_suggests_to_do_without_cma_only_where_that_helps(monkeypatch):
    monkeypatch.setattr(doctor.launchers, "_under_torchrun", lambda *_: ("0.1", ""))
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
