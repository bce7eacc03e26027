"""The memory limit is real, and a rank holds no parameter of a stage that it does not run."""

import json

import mpi
import pytest

SCRIPT = mpi.JOBS / "memory_limit.py"
LIMIT_MIB = 20


@pytest.fixture(scope="module")
def reports():
    done = mpi.run([str(SCRIPT), str(LIMIT_MIB)], 4, 120, forked=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_peak_of_every_rank_stays_under_the_limit(reports):
    assert len(reports) == 4
    for report in reports:
        assert report["peak_mib"] <= LIMIT_MIB, report


def test_ranks_hold_the_parameters_of_their_own_stage_only(reports):
    stages = reports[0]["stages"]
    assert sum(stage["parameter_bytes"] for stage in stages) == 8 * (512 * 512 + 512) * 4
    for report in reports:
        (own,) = [s["parameter_bytes"] for s in stages if report["rank"] in s["ranks"]] or [0]
        assert report["local_parameter_bytes"] == own
        # Parameters, gradients and two states of AdamW, and less than a MiB of anything else.
        assert report["held_mib"] <= 4 * own / 2**20 + 1, report


def test_when_nothing_fits_every_rank_ends_with_the_needed_and_the_available_bytes():
    done = mpi.run([str(SCRIPT), "1"], 4, 60, forked=False)
    assert done.returncode != 0
    assert "InfeasibleError" in done.stderr and "needs" in done.stderr and "MiB" in done.stderr


def test_a_plan_fits_by_what_a_step_holds():
    """The account by which plans are searched is what a step takes, so just above what a step holds
    the plan stays."""
    done = mpi.run([str(SCRIPT.with_name("memory_room.py"))], 2, 120, forked=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    free, limited = found["free"], found["limited"]
    # Of the three messages that the account has room for, two may be gone at the peak, or not:
    # 512 rows of 256 numbers each.
    message = 512 * 256 * 4 / 2**20
    assert free["measured_mib"] <= free["account_mib"], found
    assert free["measured_mib"] >= 0.97 * (free["account_mib"] - 2 * message), found
    assert limited["account_mib"] == free["account_mib"], found
    assert limited["measured_mib"] <= found["limit_mib"], found
