"""generate() through the pipeline gives the tokens of one process, in few captures."""

import json

import mpi
import pytest

SCRIPT = mpi.JOBS / "generation.py"
CASES = [
    text.split("(")[0].removeprefix("def ") for text in SCRIPT.read_text().split("@case\n")[1:]
]


@pytest.fixture(scope="module")
def job():
    return mpi.run([str(SCRIPT)], 2, timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_it_is_right(case, job):
    lines = [line for line in job.stdout.splitlines() if line.startswith('{"case"')]
    faults = [each["fault"] for each in map(json.loads, lines) if each["case"] == case]
    assert faults == [""] * 2, "\n".join([*faults, job.stderr[-3000:]])


def test_tokens_per_second_are_reported(job):
    assert "info generate: 14 tokens for each of 4 rows in " in job.stderr, job.stderr[-3000:]
