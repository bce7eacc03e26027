import shutil

import pytest

from pyrannc import _C


def pytest_collection_modifyitems(items):
    reason = None
    if not _C.comm.mpi_available():
        reason = "this build has no MPI"
    elif shutil.which("mpirun") is None:
        reason = "mpirun was not found"
    if reason:
        for item in items:
            if "dist" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=reason))
