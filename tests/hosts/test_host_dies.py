"""A host that dies without a word ends the job soon, and is named; a short outage does not."""

import sys
import time

import on_hosts
import pytest
from on_hosts import VARIABLES, Hosts

pytestmark = pytest.mark.hosts

SCRIPT = """
import os, sys, time
from pyrannc import launch
world = launch.world(300)
world.barrier()
print("met", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:  # who sends, and who only waits, changes
    word = world.broadcast(b"x" * 100, 1)
    word = world.broadcast(b"go on" if time.monotonic() < end else b"end", 0)
    if word == b"end":
        break
    time.sleep(0.2)
print("done", flush=True)
"""
RUN = [
    sys.executable, "-c", "from pyrannc.cli import main; main()", "run", "-n", "2",
    "--hosts", "h1:1,h2:1", "--env", "PYTHONPATH",
]  # fmt: skip


class Job:
    """Two ranks that talk for a while, by ``rannc run`` or with torchrun's variables."""

    def __init__(self, two, folder, launcher, seconds):
        script = folder / "talk.py"
        script.write_text(SCRIPT)
        self._output = folder / f"{launcher}.out"
        self._output.unlink(missing_ok=True)
        self._two, self._script = two, [str(script), str(seconds)]
        if launcher == "mpi":
            self.first = self._start("h1", [*RUN, *on_hosts.rank(*self._script)], {})
        else:
            meeting = {"MASTER_ADDR": "h1", "MASTER_PORT": "4711", "WORLD_SIZE": "2"}
            command = [sys.executable, *on_hosts.rank(*self._script)]
            self.first, _ = (
                self._start(name, command, meeting | {"RANK": str(rank)})
                for rank, name in enumerate(two.names)
            )

    def _start(self, name, command, env):
        with self._output.open("a") as output:
            return self._two.start(name, command, VARIABLES | env, stdout=output, stderr=output)

    def text(self):
        return self._output.read_text()

    def has_met(self):
        for _ in range(2000):
            if self.text().count("met") == 2:
                return
            time.sleep(0.1)
        raise AssertionError(self.text())


@pytest.mark.parametrize("launcher", ["mpi", "sockets"])
def test_an_outage_of_8_seconds_does_not_end_the_job(two, folder, launcher):
    job = Job(two, folder, launcher, seconds=14)
    job.has_met()
    two.do("cut", "h2")
    time.sleep(8)
    two.do("join", "h2")
    assert job.first.wait(60) == 0, job.text()
    assert "done" in job.text()


# The other ranks, and mpirun itself, waited for comm_timeout_s.
@pytest.mark.parametrize("launcher", ["mpi", "sockets"])
def test_a_host_that_dies_ends_the_job_and_is_named(folder, launcher):
    with Hosts(2, "--ssh", share=[folder]) as two:
        two.prepare_ranks()
        job = Job(two, folder, launcher, seconds=200)
        job.has_met()
        two.do("cut", "h2")
        two.do("off", "h2")
        start = time.monotonic()
        assert job.first.wait(60) != 0
        assert time.monotonic() - start <= 30
    assert "done" not in job.text()
    told = "on node h2" if launcher == "mpi" else "rank 1 on h2 does not answer"
    assert told in " ".join(job.text().split()), job.text()
