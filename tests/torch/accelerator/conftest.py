"""The stand-in accelerator changes torch for its whole process: these tests have one of their own.

The first test starts it, for all that were selected in this folder; each then says what came of it
there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import standin
import torch

from pyrannc.job import process

REPORTS = "STANDIN_REPORTS"  # in the process of its own: the file that gets what came of tests
FOLDER = Path(__file__).parent
DEADLINE_S = 900  # against hangs
outcomes = pytest.StashKey()


def pytest_collection_modifyitems(items):
    if not standin.built():
        for item in items:
            if FOLDER in item.path.parents:
                reason = f"{standin.LIBRARY} was not built: -DRANNC_TESTS=ON"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def devices():
    """Four devices, in the process of its own."""
    if REPORTS in os.environ:
        standin.start(devices=4, memory_bytes=256 << 20, delay_us=50)


@pytest.fixture
def nccl_environment():
    """NCCL has the environment of our jobs, and what a test has set does not reach the next."""
    process.order_nccl_launches()
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def as_before():
    """What a test has set does not reach the next, and no memory is reserved before it."""
    if REPORTS in os.environ:
        torch.accelerator.empty_cache()
        standin.clear_counts()
    yield
    if REPORTS in os.environ:
        standin.keep_to()
        standin.slow_links()
        standin.set_delay(50)
        standin.set_device(0)
        for fault in standin.FAULTS:
            standin.fail(fault, 0)
        for index in range(standin.device_count()):
            standin.forget_error(index)
            if standin.has_context(index):
                standin.synchronize(index)


def pytest_runtest_logreport(report):
    """In the process of its own: what came of a test, or of its set-up."""
    if REPORTS in os.environ and (report.when == "call" or report.failed):
        with open(os.environ[REPORTS], "a") as file:
            text = report.longreprtext + "".join(text for _, text in report.sections)
            print(json.dumps([report.nodeid, report.outcome, text]), file=file)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if REPORTS in os.environ:
        return None  # here it runs
    session = pyfuncitem.session
    if outcomes not in session.stash:
        names = [item.nodeid for item in session.items if FOLDER in item.path.parents]
        session.stash[outcomes] = run(names, session.config, pyfuncitem)
    found, end = session.stash[outcomes]
    if pyfuncitem.nodeid not in found:
        pytest.fail(f"the process of these tests ended before this one:\n{end}", pytrace=False)
    for outcome, text in found[pyfuncitem.nodeid]:
        if outcome != "passed":
            pytest.fail(text, pytrace=False)
    return True


def run(names, config, item):
    """By test, ``(outcome, text)`` of its parts; and the last lines that were printed."""
    reports = item.config._tmp_path_factory.mktemp("standin") / "reports"
    reports.touch()
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    try:
        process = subprocess.run(
            [*command, *names],
            cwd=config.rootpath,
            env=os.environ | {REPORTS: str(reports)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        end = process.stdout[-3000:] + process.stderr[-3000:]
    except subprocess.TimeoutExpired:  # what it did not come to fails, and is not run again
        end = f"it had not ended after {DEADLINE_S} s"
    found = {}
    for line in reports.read_text().splitlines():
        name, *outcome = json.loads(line)
        found.setdefault(name, []).append(outcome)
    return found, end
