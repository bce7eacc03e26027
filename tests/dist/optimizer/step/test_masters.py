"""Masters of 32 bits under plans: shared out over replicas or not, saved by one and loaded by
another."""

import pytest
import selected_cases

FEW = ["loops/2+2", "loops/4", "checkpoints/4", "clipping/2+2", "late/1+2+1"]
OTHERS = ["loops/1+2+1", "checkpoints/2+2", "scaler/2+2", "losses/2+2"]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    return selected_cases.found("masters.py", request, tmp_path_factory)


@pytest.mark.parametrize(
    "case", FEW + [pytest.param(name, marks=pytest.mark.all) for name in OTHERS]
)
def test_masters_are_those_without_sharing_and_of_other_plans(found, case):
    assert not found[case], found[case]
