"""The planted faults can be planted, and the tests that notice them are selected."""

import affected
import pytest
from planted_faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.file)
def test_a_fault_can_be_planted_and_what_notices_it_runs(fault):
    assert (ROOT / fault.file).read_text().count(fault.old) == 1, (
        f"{fault.file} has changed: plant another fault there, and run "
        f"`python tests/support/planted_faults.py {fault.file}`"
    )
    found, core = affected.affected([fault.file])
    if fault.test.startswith("tests/core/"):
        assert core and (ROOT / fault.test).is_file()
    else:
        assert fault.test in found  # all of the file


def test_there_are_fifty_in_all_parts():
    assert len(FAULTS) >= 50
    parts = {fault.file.rpartition("/")[0] for fault in FAULTS}
    assert len(parts) >= 30
