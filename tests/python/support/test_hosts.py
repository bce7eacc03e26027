import subprocess
import sys
from pathlib import Path

import hosts
import pytest
from on_hosts import Hosts

pytestmark = pytest.mark.skipif(
    bool(hosts.reason_without()), reason=hosts.reason_without() or "none"
)

SERVER = """
import socket
socket.create_server(("h1", 4711)).accept()[0].send(b"hello")
"""
CLIENT = """
import socket, time
while True:
    try:
        print(socket.create_connection(("h1", 4711)).recv(5).decode(), end="")
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
"""


def spaces():
    """The network namespaces of all processes."""
    found = subprocess.run(["lsns", "-t", "net", "-n", "-o", "NS"], capture_output=True, text=True)
    return set(found.stdout.split())


def test_hosts_reach_each_other_and_leave_nothing():
    with Hosts(2) as two:
        state = two.state
        assert two.check("h1", "hostname") == "h1\n"
        two.start("h1", [sys.executable, "-c", SERVER], stdout=subprocess.DEVNULL)
        assert two.check("h2", sys.executable, "-c", CLIENT) == "hello"
        two.check("h1", "touch", "/tmp/of-h1", "/dev/shm/of-h1")
        assert "of-h1" not in two.check("h2", "ls", "/tmp", "/dev/shm")
        inside = spaces()
        process = two.start("h2", ["sleep", "1000"])
        two.do("off", "h2")
        assert process.wait(10) != 0
    assert not state.exists()
    assert str(state) not in Path("/proc/mounts").read_text()
    assert len(inside - spaces()) >= 2
