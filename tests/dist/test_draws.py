"""Dropout on four ranks: masks of their own, replayed by recompute, and the same under every plan.

All cases share one start of the ranks.
"""

import json

import mpi
import pytest
from jobs import draws

SCRIPT = mpi.JOBS / "draws.py"


@pytest.fixture(scope="module")
def job():
    # Bit for bit: MKL's products otherwise depend on where in memory the operands happen to lie.
    return mpi.run([str(SCRIPT)], 4, timeout=300, env={"MKL_CBWR": "COMPATIBLE"})


@pytest.mark.parametrize("case", draws.CASES)
def test_random_numbers(case, job):
    lines = [line for line in job.stdout.splitlines() if line.startswith('{"case"')]
    reports = {entry["case"]: entry["failures"] for entry in map(json.loads, lines)}
    assert case in reports, (
        f"the ranks ended before; the end of their output:\n{job.stderr[-3000:]}"
    )
    assert reports[case] == []
