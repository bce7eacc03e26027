"""Scripts of RaNNC 0.7 on three ranks, with one start of them."""

import json

import mpi
import pytest

RANKS = 3
SCRIPT = mpi.JOBS / "original.py"
CASES = [
    line.split()[1].split("(")[0]
    for before, line in zip(
        SCRIPT.read_text().splitlines(), SCRIPT.read_text().splitlines()[1:], strict=False
    )
    if before == "@case"
]


@pytest.fixture(scope="module")
def job():
    return mpi.run([str(SCRIPT)], RANKS, timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_what_a_script_does_is_right(case, job):
    lines = [line for line in job.stdout.splitlines() if line.startswith('{"case"')]
    faults = [each["fault"] for each in map(json.loads, lines) if each["case"] == case]
    assert faults == [""] * RANKS, "\n".join([*faults, job.stderr[-3000:]])


def test_what_is_replaced_is_said_once_by_rank_0(job):
    lines = [line for line in job.stderr.splitlines() if "enable_apex_amp=True" in line]
    assert len(lines) == 1 and "torch.autocast and pyrannc.GradScaler" in lines[0], job.stderr
    assert "enable_dropout() does nothing before the first call" in job.stderr


def test_boundary_values_and_times_are_in_the_log_of_the_ranks_that_have_them(job):
    for what in ("into stage 0, micro-batch 0: x Float", "out of stage 1, micro-batch 0"):
        assert any(what in line for line in job.stderr.splitlines()), what
    times = [line for line in job.stderr.splitlines() if "profiling: 1 training steps" in line]
    assert sorted(line.split("rank ")[1][0] for line in times) == ["0", "1", "2"], job.stderr


def test_a_plan_and_a_dry_run_are_shown(job):
    assert "2 stages" in job.stdout
    assert f"partitioning_dry_run_np: the plan for {2 * RANKS} ranks" in job.stderr
