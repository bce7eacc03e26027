"""For all tests: what one of them has measured of operators serves those after it, in a folder of
this run; the user's cache is never read or written. A test of the measurement itself asks for
``profile_cache="off"``.
"""

import atexit
import os
import tempfile

_costs = tempfile.TemporaryDirectory(prefix="rannc-costs-")
atexit.register(_costs.cleanup)
os.environ["RANNC_PROFILE_CACHE"] = _costs.name

if (
    os.environ.get("RANNC_FRONTEND") == "export"
):  # make test-export: all tests, without torch's tracer
    from pyrannc.capture.model import capture

    capture.__defaults__ = (*capture.__defaults__[:-1], "export")
