"""Half an hour of training in changing ways: no drift from one process, no growth of memory."""

import json

import mpi
import pytest

SCRIPT = mpi.JOBS / "soak.py"


@pytest.mark.all
def test_half_an_hour_drifts_nowhere_and_grows_nothing():
    done = mpi.run([str(SCRIPT), "--minutes", "30"], 4, timeout=3600)
    assert done.returncode == 0, done.stderr[-5000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert min(report["steps"].values()) > 500
    # float64: rounding errors neither grow nor cancel over thousands of steps.
    assert max(report["difference"].values()) < 1e-9, report
    for early, late in report["mib"]:
        assert late - early < 2, report  # a leak of 1 KiB a step would be more
