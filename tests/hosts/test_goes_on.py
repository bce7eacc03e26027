"""A job goes on when a host is back, and without one that stays away."""

import json
import sys
import time

import mpi
import pytest
from on_hosts import VARIABLES, Hosts

pytestmark = pytest.mark.hosts

JOB = mpi.JOBS / "hosts_that_go.py"
RUN = [
    sys.executable, "-c", "from pyrannc.cli import main; main()", "run", "-n", "2",
    "--hosts", "h1:1,h2:1", "--env", "PYTHONPATH", "--max-restarts", "2", "--min-hosts", "1",
]  # fmt: skip


def comes(is_there, text):
    for _ in range(1200):
        if is_there():
            return
        time.sleep(0.1)
    raise AssertionError(text())


# A host that was away for more than 20 s ended the job, and one that stayed away kept it from being
# started again; SIGTERM ended a rank in the middle of a step.
def test_a_job_survives_an_outage_and_a_host_that_is_taken_away(folder):
    (folder / "one").mkdir()
    done = mpi.run([str(JOB), str(folder / "one"), "30"], 1)
    assert done.returncode == 0, done.stderr
    saved = folder / "two"
    saved.mkdir()
    output = folder / "run.out"
    with Hosts(2, "--ssh", share=[folder]) as two, output.open("w") as out:
        command = [*RUN, str(JOB), str(saved), "30"]
        run = two.start("h1", command, VARIABLES, stdout=out, stderr=out)

        def steps():
            written = saved / "steps"
            return int((written.exists() and written.read_text()) or 0)

        comes(lambda: steps() >= 4, output.read_text)
        two.do("cut", "h2")
        comes(lambda: "is started again (restart 1 of 2)" in output.read_text(), output.read_text)
        two.do("join", "h2")
        before = steps()
        comes(lambda: steps() >= before + 3, output.read_text)
        two.check("h2", "pkill", "-TERM", "-f", str(JOB))
        comes(lambda: len([*saved.glob("told-*")]) == 2, output.read_text)
        two.do("cut", "h2")
        two.do("off", "h2")
        assert run.wait(200) == 0, output.read_text()
    text = output.read_text()
    assert "going on without h2: 1 ranks on h1" in text
    losses, sizes = zip(*json.loads((saved / "losses.json").read_text()), strict=True)
    told = [int((saved / f"told-{rank}").read_text()) for rank in range(2)]
    assert told[0] == told[1]
    assert sizes == (2,) * told[0] + (1,) * (30 - told[0])  # nothing was lost
    expected, _ = zip(*json.loads((folder / "one/losses.json").read_text()), strict=True)
    assert losses == pytest.approx(expected, rel=1e-5)
