"""The scripts of examples/ at their smallest size, and what their page says of them."""

import json
import subprocess
import sys

import mpi
import pytest
import torchrun

EXAMPLES = mpi.ROOT / "examples"
SMALL = ["--epochs", "2", "--updates", "2", "--precision", "float32"]
TWO_STAGES = {"RANNC_PARTITION_NUM": "2"}


def curve(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def masked_lm(launcher, *more, ranks=2, environment=None):
    program = [str(EXAMPLES / "masked_lm.py"), *SMALL, *map(str, more)]
    if launcher == "mpirun":
        return curve(mpi.run(program, ranks, timeout=300, env=environment))
    if launcher == "torchrun":
        return curve(torchrun.run(program, ranks, None, timeout=300))
    return curve(
        subprocess.run(
            [sys.executable, *program], capture_output=True, text=True, timeout=300,
            env=torchrun.environment(1),
        )
    )  # fmt: skip


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for entry, other in zip(found, expected, strict=True):
        assert entry == pytest.approx(other, rel=1e-5)


@pytest.fixture(scope="module")
def one_process():
    return masked_lm("python")


def test_a_script_from_the_field_has_the_curve_of_one_process_and_goes_on_in_one(
    one_process, tmp_path
):
    file = tmp_path / "run.pt"
    cut = ["--until", 1, "--checkpoint", file]
    first = masked_lm("mpirun", "--with", "rannc", *cut, environment=TWO_STAGES)
    second = masked_lm("python", "--checkpoint", file)
    assert_equal(first + second, one_process)


@pytest.mark.all
def test_the_same_script_under_every_launcher(one_process, tmp_path):
    assert_equal(masked_lm("torchrun", "--with", "ddp"), one_process)
    assert_equal(masked_lm("torchrun", "--with", "rannc"), one_process)
    file = tmp_path / "run.pt"
    first = masked_lm("python", "--until", 1, "--checkpoint", file)
    second = masked_lm("mpirun", "--with", "rannc", "--checkpoint", file, ranks=4)
    assert_equal(first + second, one_process)


@pytest.mark.all
@pytest.mark.parametrize(
    "script, options",
    [
        ("train_gpt.py", ["--steps", "12"]),
        ("enlarged_bert.py", ["--layers", "2", "--hidden", "64", "--steps", "10"]),
        ("enlarged_resnet.py", ["--steps", "10"]),
    ],
)
def test_an_example_trains(script, options):
    done = mpi.run([str(EXAMPLES / script), *options], 4, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "loss" in done.stdout


@pytest.mark.all
@pytest.mark.parametrize(
    "build", ["enlarged_bert.py:build_4_9_billion", "enlarged_resnet.py:build_152x8"]
)
def test_sizes_of_the_paper_have_plans_for_its_devices(build, tmp_path):
    graph, plan = tmp_path / "graph.json", tmp_path / "plan.json"
    for arguments in (
        ["capture", EXAMPLES / build, "-o", graph, "--device", "v100"],
        ["plan", "--graph", graph, "--cluster", EXAMPLES / "planner" / "v100.toml",
         "--global-batch", "512", "-o", plan],
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", "from pyrannc.cli import main; main()", *arguments],
            capture_output=True, text=True, timeout=900, env=torchrun.environment(1),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(plan.read_text())["feasible"]
