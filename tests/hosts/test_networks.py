"""Of the networks that hosts have, the one is used that reaches the others, and fast."""

import json
import sys

import on_hosts
import pytest
from on_hosts import Hosts

pytestmark = pytest.mark.hosts

RUN = [
    sys.executable, "-c", "from pyrannc.cli import main; main()", "run", "-n", "2",
    "--hosts", "h1:1,h2:1", "--env", "PYTHONPATH",
]  # fmt: skip
TALK = """
import json, os
from pyrannc import _C, launch
world = launch.world(60)
speed = _C.comm.measure_links(world).inter_host.bandwidth_bytes_per_s
names = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RANNC_RUN_INTERFACES")
if world.rank == 1:
    print(json.dumps([speed, *map(os.environ.get, names)]))
"""


@pytest.fixture
def talk(folder):
    script = folder / "talk.py"
    script.write_text(TALK)
    return [*RUN, str(script)]


# MPI waited 600 s for ranks that it thought to reach by docker0, and said "a rank never reached
# it".
def test_a_bridge_with_one_address_on_all_hosts_leads_nowhere(folder, talk):
    with Hosts(2, "--ssh", "--trap", share=[folder]) as two:
        done = two.run("h1", talk, on_hosts.VARIABLES, timeout=90)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[1:] == ["10.77.0.1", "eth0", "eth0", None]


# MPI used both networks, and was planned as something in between.
def test_the_faster_of_two_networks_carries_all(folder, talk):
    with Hosts(2, "--ssh", "--rate", "50mbit", "--second", "200mbit", share=[folder]) as two:
        done = two.run("h1", talk, on_hosts.VARIABLES)
        assert done.returncode == 0, done.stderr
        speed, *found = json.loads(done.stdout)
        assert found == ["10.78.0.1", "eth1", "eth1", None]
        assert speed == pytest.approx(200e6 / 8, rel=0.1)
        # What a user has set stays.
        mine = {"OMPI_MCA_btl_tcp_if_include": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
        done = two.run("h1", talk, on_hosts.VARIABLES | mine)
        assert done.returncode == 0, done.stderr
        speed, *found = json.loads(done.stdout)
        assert found == ["10.78.0.1", "eth1", "eth0", None]
        assert speed == pytest.approx(50e6 / 8, rel=0.1)


# mpirun said nothing, for ever.
def test_a_firewall_is_named_with_hosts_and_ports(folder, talk):
    with Hosts(2, "--ssh", "--firewall", share=[folder]) as two:
        done = two.run("h1", talk, on_hosts.VARIABLES, timeout=60)
        assert done.returncode == 1
        assert "h2 could not connect to h1 at 10.77.0.1 on the ports" in done.stderr
        assert "OMPI_MCA_oob_tcp_dynamic_ipv4_ports" in done.stderr

        ports = {
            "OMPI_MCA_oob_tcp_dynamic_ipv4_ports": "20000-20099",
            "OMPI_MCA_btl_tcp_port_min_v4": "21000",
            "OMPI_MCA_btl_tcp_port_range_v4": "100",
        }
        for name in two.names:
            opened = "{ 20000-20099, 21000-21099, 22000-22999 }"
            two.check(name, "nft", f"add rule inet f c tcp dport {opened} accept")
            two.check(name, "sysctl", "-q", "net.ipv4.ip_local_port_range=22000 22999")
        done = two.run("h1", talk, on_hosts.VARIABLES | ports)
        assert done.returncode == 0, done.stderr


def test_hosts_without_a_common_network_use_those_of_their_names(folder, talk):
    """Through a router: h1 and h2 have addresses of their own networks."""
    with Hosts(2, "--ssh", share=[folder]) as two:
        for name, own, other in (("h1", 81, 82), ("h2", 82, 81)):
            two.check(name, "ip", "address", "flush", "dev", "eth0")
            two.check(name, "ip", "address", "add", f"10.{own}.0.1/24", "dev", "eth0")
            two.check(name, "ip", "route", "add", f"10.{other}.0.0/24", "dev", "eth0")
            (two.state / name / "hosts").write_text(
                "127.0.0.1 localhost\n10.81.0.1 h1\n10.82.0.1 h2\n"
            )
        done = two.run("h1", talk, on_hosts.VARIABLES)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[1:4] == ["10.81.0.1", "eth0", "eth0"]
