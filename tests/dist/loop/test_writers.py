"""Accelerate, Trainer, PEFT and Lightning write the whole model once, by rank 0."""

import json

import mpi
import pytest

CASES = ["accelerate", "trainer", "peft", "lightning"]


@pytest.fixture(scope="module")
def job():
    return mpi.run([str(mpi.JOBS / "writers.py")], 2, timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_it_writes_the_whole_once(case, job):
    lines = [line for line in job.stdout.splitlines() if line.startswith('{"case"')]
    faults = [each["fault"] for each in map(json.loads, lines) if each["case"] == case]
    assert faults == [""] * 2, "\n".join([*faults, job.stderr[-3000:]])
