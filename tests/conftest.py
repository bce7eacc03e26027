"""For all tests: what one of them has measured of operators serves those after it, in a folder of
this run; the user's cache is never read or written. A test of the measurement itself asks for
``profile_cache="off"``. An audit captures a call once more, which is most of what many tests would
do: those that want audits say so by ``pytest.mark.usefixtures("audits")``.
"""

import atexit
import os
import tempfile

import needs_tracer
import pytest

_costs = tempfile.TemporaryDirectory(prefix="rannc-costs-")
atexit.register(_costs.cleanup)
os.environ["RANNC_PROFILE_CACHE"] = _costs.name
os.environ["RANNC_AUDIT"] = "off"


@pytest.fixture(scope="module")
def audits():
    """Calls are audited as they are for users, also on the ranks that this module starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANNC_AUDIT", "auto")
        yield


def pytest_collection_modifyitems(items):
    needs_tracer.expect(items)
