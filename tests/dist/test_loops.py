"""Loops that users write, on four ranks under every schedule, against one process.

All cases share one start of the ranks.
"""

import json

import mpi
import pytest
from jobs import loops

SCRIPT = mpi.JOBS / "loops.py"
GROUPS = [
    *(
        f"{plan}/{schedule}"
        for plan in ("2+2", "1+1+1+1", "1+2+1", "1+3", "4")
        for schedule in ("1f1b", "gpipe")
    ),
    "2x(2+2)/interleaved",
    "2x(1+3)/interleaved",
]
CASES = [name for group in GROUPS for name in loops.cases_of(group)]


@pytest.fixture(scope="module")
def job():
    return mpi.run([str(SCRIPT), *GROUPS], 4, timeout=300)


@pytest.fixture(scope="module")
def reports(job):
    lines = [line for line in job.stdout.splitlines() if line.startswith('{"case"')]
    return {entry["case"]: entry["failures"] for entry in map(json.loads, lines)}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_equals_one_process(case, reports, job):
    assert case in reports, (
        f"the ranks ended before; the end of their output:\n{job.stderr[-3000:]}"
    )
    assert reports[case] == []


def test_a_loss_that_is_never_used_is_warned_of_once(job):
    assert job.stderr.count("a loss was never used") == 1, job.stderr[-3000:]
