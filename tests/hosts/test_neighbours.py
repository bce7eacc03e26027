"""Jobs of two users on the same hosts, and strangers who connect to what they listen on."""

import json
import os
import sys

import mpi
import pytest
from on_hosts import VARIABLES

pytestmark = pytest.mark.hosts

STEPS = 4
JOB = str(mpi.JOBS / "resume.py")
TORCHRUN = "from torch.distributed.run import main; main()"
USERS = {0: 4711, 65534: 4721}  # and the port at which the ranks of each meet

# Connects to every port of this host as soon as somebody listens there, and says little or nothing.
STRANGER = """
import socket, time

def listening():
    for line in [*open("/proc/net/tcp"), *open("/proc/net/tcp6")]:
        words = line.split()
        if words[3] == "0A":  # listening
            yield int(words[1].rpartition(":")[2], 16)

with open("/tmp/stranger", "w") as ready:
    ready.write("begun")
known, kept = set(listening()), []
while True:
    for port in set(listening()) - known:
        known.add(port)
        for said in (b"", b"ten bytes."):
            try:
                kept.append(socket.create_connection(("localhost", port), 1))
                kept[-1].sendall(said)
            except OSError:
                pass
        print(port, flush=True)
    time.sleep(0.05)
"""


def expected(folder):
    """The losses of two ranks of one host."""
    done = mpi.run([JOB, str(folder), "0", str(STEPS)], 2)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "losses-0.json").read_text())


def as_user(number):
    # This Python may be in a folder that only root may read.
    reading = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", *reading]


def test_two_users_train_at_once_beside_strangers(two, folder, tmp_path):
    strangers = {name: tmp_path / name for name in two.names}
    for name, path in strangers.items():
        with path.open("w") as out:
            two.start(name, [sys.executable, "-c", STRANGER], stdout=out)
    agents, saved = [], {}
    for user, port in USERS.items():
        saved[user] = folder / str(user)
        home = folder / f"home-{user}"
        for made in (saved[user], home):
            made.mkdir()
            os.chown(made, user, user)
        for number, name in enumerate(two.names):
            meeting = [f"--node-rank={number}", "--master-addr=h1", f"--master-port={port}"]
            command = [
                *as_user(user),
                sys.executable,
                "-c",
                TORCHRUN,
                "--nnodes=2",
                "--nproc-per-node=1",
            ]
            job = [*command, *meeting, JOB, str(saved[user]), "0", str(STEPS)]
            agents.append(two.start(name, job, VARIABLES | {"HOME": str(home)}))
    assert [agent.wait(240) for agent in agents] == [0] * len(agents)
    one = tmp_path / "one"
    one.mkdir()
    for user in USERS:
        found = json.loads((saved[user] / "losses-0.json").read_text())
        assert found == pytest.approx(expected(one), rel=1e-6)
        assert (saved[user] / "losses-0.json").stat().st_uid == user
    # Each host's part of a job listens somewhere, and was spoken to.
    assert all(len(path.read_text().split()) >= len(USERS) for path in strangers.values())
