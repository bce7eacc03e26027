"""`rannc doctor --hosts` finds what would go wrong, before a job."""

import json
import sys

import on_hosts
import pytest
from on_hosts import Hosts

pytestmark = pytest.mark.hosts

DOCTOR = [
    sys.executable, "-c", "from pyrannc.cli import main; main()", "doctor", "--json",
    "--env", "PYTHONPATH", "--hosts",
]  # fmt: skip


def test_hosts_that_fit_have_no_problems(two):
    done = two.run("h1", [*DOCTOR, "h1,h2"], on_hosts.VARIABLES)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["found"]["network"] == "10.77.0.0/24"
    assert "bit/s" in found["found"]["h2 to h1"]
    for name in ("h1", "h2"):
        assert "Open MPI" in found["found"][name]
        assert "ranks compute on the CPU" in found["found"][f"{name}: accelerators"]


def test_what_is_wrong_is_told_with_what_mends_it(folder):
    with Hosts(2, "--ssh", "--trap", "--no-names", "--firewall", share=[folder]) as two:
        two.check("h2", "ip", "link", "set", "dev", "eth0", "mtu", "1400")
        names = "10.77.0.1,10.77.0.2,nowhere"
        done = two.run("h1", [*DOCTOR, names], on_hosts.VARIABLES)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert "leads to no other host" in found["found"]["172.17.0.1"]
    problems = "\n".join(found["problems"])
    assert "nowhere cannot be asked" in problems and "ssh-copy-id nowhere" in problems
    assert "10.77.0.2 could not connect to 10.77.0.1 at 10.77.0.1 on the ports" in problems
    assert "ssh 10.77.0.1 ip link set dev eth0 mtu 1400" in problems
