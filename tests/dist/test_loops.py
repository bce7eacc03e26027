"""Loops that users write, on four ranks under every schedule, against one process.

The cases of a selection share one start of the ranks.
"""

import functools
import json

import mpi
import pytest
from jobs import loops

SCRIPT = mpi.JOBS / "loops.py"
COVERING = [
    "2+2/1f1b",
    "1+1+1+1/gpipe",
    "1+3/gpipe",
    "4/1f1b",
    "2x(1+3)/interleaved",
]
OTHERS = [
    "2+2/gpipe", "1+1+1+1/1f1b", "1+2+1/gpipe", "1+2+1/1f1b", "1+3/1f1b", "4/gpipe",
    "2x(2+2)/interleaved",
]  # fmt: skip


@functools.cache
def job(selection):
    return mpi.run([str(SCRIPT), *selection], 4, timeout=300)


def check(case, selection):
    ended = job(selection)
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"case"')]
    reports = {entry["case"]: entry["failures"] for entry in map(json.loads, lines)}
    assert case in reports, (
        f"the ranks ended before; the end of their output:\n{ended.stderr[-3000:]}"
    )
    assert reports[case] == []


def cases_of(groups):
    return [name for group in groups for name in loops.cases_of(group)]


@pytest.mark.parametrize("case", cases_of(COVERING))
def test_a_loop_equals_one_process(case):
    check(case, tuple(COVERING))


@pytest.mark.all
@pytest.mark.parametrize("case", cases_of(OTHERS))
def test_a_loop_of_another_plan_equals_one_process(case):
    check(case, tuple(OTHERS))


def test_a_loss_that_is_never_used_is_warned_of_once():
    text = job(tuple(COVERING)).stderr
    assert text.count("a loss was never used") == 1, text[-3000:]
