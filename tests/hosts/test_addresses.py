"""Ranks of torchrun's variables meet whatever names and addresses their hosts have."""

import json
import sys

import pytest
from on_hosts import VARIABLES, Hosts

pytestmark = pytest.mark.hosts

SCRIPT = """
import json, os
from pyrannc import launch
world = launch.world(100)
hosts = [item.decode() for item in world.all_gather(world.host.encode())]
print(json.dumps([hosts, os.environ.get("GLOO_SOCKET_IFNAME")]))
"""


# On a host whose own name is 127.0.1.1, which Debian's installer writes into /etc/hosts, rank 0
# told the others 127.0.0.1, and Gloo listened there; hosts with one name counted as one, and told
# each other 127.0.0.1; where there is no IPv4 no socket could be made.
@pytest.mark.parametrize(
    "options, expected",
    [
        (["--own-name-is-loopback"], ["h1", "h2"]),
        (["--same-name", "node"], ["node", "node (2)"]),
        (["--no-names"], ["h1", "h2"]),
        (["--ipv6"], ["h1", "h2"]),
    ],
    ids=lambda value: value[0],
)
def test_ranks_meet(options, expected, folder):
    script = folder / "meet.py"
    script.write_text(SCRIPT)
    address = "10.77.0.1" if "--no-names" in options else "h1"
    with Hosts(2, *options, share=[folder]) as two:
        ranks = []
        for number, name in enumerate(two.names):
            meeting = {"MASTER_ADDR": address, "MASTER_PORT": "4711"}
            who = {"RANK": str(number), "WORLD_SIZE": "2"}
            output = (folder / f"{name}.out").open("w+")
            command = [sys.executable, str(script)]
            env = VARIABLES | meeting | who
            ranks.append(two.start(name, command, env, stdout=output, stderr=output))
        codes = [rank.wait(150) for rank in ranks]
        texts = [(folder / f"{name}.out").read_text() for name in two.names]
        assert codes == [0, 0], texts
    for text in texts:
        assert json.loads(text.splitlines()[-1]) == [expected, "eth0"]
