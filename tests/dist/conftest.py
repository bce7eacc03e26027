import concurrent.futures
import json
import shutil
import textwrap
from types import SimpleNamespace

import mpi
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


#: Jobs of one file that run at the same time. Most of what they do is to wait for a deadline.
AT_A_TIME = 4
RESULTS = pytest.StashKey[dict]()


def alone(item) -> bool:
    """Whether a test needs more than its parameters, or is left out on some machines."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return bool(set(item.fixturenames) - set(params)) or item.get_closest_marker("skipif")


def pytest_pyfunc_call(pyfuncitem):
    """The first of a file's tests that are marked so begins all that were selected with it."""
    if pyfuncitem.get_closest_marker("side_by_side") is None or alone(pyfuncitem):
        return None
    results = pyfuncitem.session.stash.setdefault(RESULTS, {})
    if pyfuncitem not in results:
        pool = concurrent.futures.ThreadPoolExecutor(AT_A_TIME)
        for item in pyfuncitem.session.items:
            if item.path == pyfuncitem.path and not alone(item):
                params = item.callspec.params if hasattr(item, "callspec") else {}
                results[item] = pool.submit(item.obj, **params)
        pool.shutdown(wait=False)
    results[pyfuncitem].result()
    return True


def code_of(item, number):
    """The code of a test that wants ``number`` ranks; None for other tests."""
    marker = item.get_closest_marker("ranks")
    if marker is None or marker.kwargs.get("number", 2) != number:
        return None
    (code,) = marker.args
    if callable(code):
        code = code(**item.callspec.params)
    return marker.kwargs.get("before", "") + textwrap.dedent(code)


@pytest.fixture(scope="module")
def starts():
    """By number of ranks: the folder, the names of the cases, and the job that has run them."""
    return {}


@pytest.fixture
def done(request, starts, tmp_path_factory):
    """The test's code has run on its ranks to the end: ``stdout`` and ``stderr`` of them all.

    Starting ranks takes seconds, so the first of a file's tests runs the code of all that were
    selected with it, each by itself.
    """
    number = request.node.get_closest_marker("ranks").kwargs.get("number", 2)
    if number not in starts:
        items = [item for item in request.session.items if item.path == request.path]
        cases = {item.nodeid: code for item in items if (code := code_of(item, number)) is not None}
        folder = tmp_path_factory.mktemp("cases")
        (folder / "cases.json").write_text(json.dumps(list(cases.values())))
        deadline = max(300, 25 * len(cases))
        job = mpi.run([str(mpi.JOBS / "cases.py"), str(folder)], number, timeout=deadline)
        starts[number] = folder, list(cases), job
    folder, cases, job = starts[number]
    case = cases.index(request.node.nodeid)

    def texts(ending):
        paths = [folder / f"{case}-{rank}.{ending}" for rank in range(number)]
        return [path.read_text() for path in paths if path.exists()]

    stdout, stderr = "".join(texts("stdout")), "".join(texts("stderr"))
    assert len(texts("done")) == number, stderr or (
        f"the ranks ended before this case:\n{job.stderr[-3000:]}"
    )
    return SimpleNamespace(stdout=stdout, stderr=stderr)
