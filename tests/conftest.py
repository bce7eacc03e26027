"""For all tests: what one of them has measured of operators serves those after it, in a folder of
this run; the user's cache is never read or written. A test of the measurement itself asks for
``profile_cache="off"``.
"""

import atexit
import os
import tempfile

import needs_tracer

_costs = tempfile.TemporaryDirectory(prefix="rannc-costs-")
atexit.register(_costs.cleanup)
os.environ["RANNC_PROFILE_CACHE"] = _costs.name


def pytest_collection_modifyitems(items):
    needs_tracer.expect(items)
