"""After other plans were tried, training is that of one process, on every rank.

All cases share one start of two ranks.
"""

import json

import mpi
import pytest
from jobs import after_trial


@pytest.fixture(scope="module")
def reports():
    done = mpi.run([str(mpi.JOBS / "after_trial.py")], 2, timeout=200)
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"case"'):
            entry = json.loads(line)
            found.setdefault(entry["case"], []).append(entry["found"])
    return found, done.stderr[-3000:]


@pytest.mark.parametrize("case", [*after_trial.CASES, *after_trial.SHAPES])
def test_training_after_a_trial_equals_one_process(case, reports):
    found, end = reports
    assert case in found, f"the ranks ended before; the end of their output:\n{end}"
    assert found[case] == [[], []]


def test_an_error_of_rank_0_is_raised_on_every_rank(reports):
    found, end = reports
    assert found.get("error") == [["no other number"]] * 2, end
