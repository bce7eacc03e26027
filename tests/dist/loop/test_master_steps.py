"""Masters of 32 bits under plans: shared out over replicas or not, saved by one and loaded by
another."""

import json

import mpi
import pytest

FEW = ["loops/2+2", "loops/4", "checkpoints/4", "clipping/2+2"]
OTHERS = ["loops/1+2+1", "checkpoints/2+2", "scaler/2+2", "losses/2+2"]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """By name of a case, what was wrong in it; of the selected ones, which share one start."""
    names = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "case" in getattr(item, "fixturenames", ())
    ]
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    path.write_text(json.dumps(names))
    job = mpi.run([str(mpi.JOBS / "masters.py"), str(path)], 4, timeout=600)
    done = path.with_suffix(".found")
    faults = json.loads(done.read_text()) if done.exists() else {}
    return {name: faults.get(name, f"did not run:\n{job.stderr[-3000:]}") for name in names}


@pytest.mark.parametrize(
    "case", FEW + [pytest.param(name, marks=pytest.mark.all) for name in OTHERS]
)
def test_masters_are_those_without_sharing_and_of_other_plans(found, case):
    assert not found[case], found[case]
