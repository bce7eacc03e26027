"""Which network the hosts of a job have in common, and which ranks each one has."""

import pytest

from pyrannc.cli import hosts


def fact(*interfaces, **names):
    listed = [
        {"name": name, "address": address, "network": network, "mtu": 1500}
        for name, address, network in interfaces
    ]
    return {"interfaces": listed, "names": names}


DOCKER = ("docker0", "172.17.0.1", "172.17.0.0/16")


def test_a_network_has_an_address_of_its_own_for_each_host():
    facts = [
        fact(DOCKER, ("eth0", "10.0.0.1", "10.0.0.0/24"), ("ib0", "10.9.0.1", "10.9.0.0/16")),
        fact(DOCKER, ("ens3", "10.0.0.2", "10.0.0.0/24")),
    ]
    (found,) = hosts.networks(facts)
    assert found == hosts.Network(("10.0.0.0/24",), ("eth0", "ens3"), ("10.0.0.1", "10.0.0.2"))


def test_networks_of_version_6_are_used_where_there_are_no_others():
    six = [fact(("eth0", f"fd77::{i}", "fd77::/64")) for i in (1, 2)]
    assert hosts.networks(six)[0].networks == ("fd77::/64",)
    both = [fact(*((each["name"], each["address"], each["network"])
                   for each in six[i]["interfaces"]), ("eth1", f"10.0.0.{i}", "10.0.0.0/24"))
            for i in (0, 1)]  # fmt: skip
    assert [each.networks for each in hosts.networks(both)] == [("10.0.0.0/24",)]


def test_hosts_behind_routers_have_the_networks_of_their_names():
    names = {"a": "10.1.0.1", "b": "10.2.0.1"}
    facts = [
        fact(("eth0", "10.1.0.1", "10.1.0.0/24"), a="127.0.1.1", b="10.2.0.1"),
        fact(("eth0", "10.2.0.1", "10.2.0.0/24"), **names),
    ]
    assert hosts.networks(facts) == []
    found = hosts.routed(facts, ["a", "b"], first=0)
    assert found.networks == ("10.1.0.0/24", "10.2.0.0/24")
    assert found.addresses == ("10.1.0.1", "10.2.0.1")
    facts[1]["interfaces"] = []  # its address is that of a machine that hands on
    assert hosts.routed(facts, ["a", "b"], first=0) is None


def test_lists_and_files_name_hosts_and_their_ranks(tmp_path):
    assert hosts.counts_of("a:2,b,a:1") == {"a": 3, "b": 0}
    file = tmp_path / "hosts"
    file.write_text("# mine\na slots=4 max_slots=4\n\nb  # slow\nc slots=2\n")
    assert hosts.counts_of("", str(file)) == {"a": 4, "b": 0, "c": 2}
    assert hosts.names_of("b:1,a:2") == ["b", "a"]


def test_ports_that_a_site_has_set_are_those_that_are_tried(monkeypatch):
    assert hosts.ports_in_use() == {"mpirun": [], "MPI": [1024, 65535], "sockets": []}
    monkeypatch.setenv("OMPI_MCA_oob_tcp_dynamic_ipv4_ports", "20000-20999")
    monkeypatch.setenv("OMPI_MCA_btl_tcp_port_min_v4", "21000")
    monkeypatch.setenv("OMPI_MCA_btl_tcp_port_range_v4", "1000")
    found = hosts.ports_in_use()
    assert found == {"mpirun": [20000, 20999], "MPI": [21000, 21999], "sockets": []}


@pytest.mark.parametrize("name", ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"])
def test_what_a_user_has_set_stays(name, monkeypatch):
    network = hosts.Network(("10.0.0.0/24",), ("eth0", "ens3"), ("10.0.0.1", "10.0.0.2"))
    found = hosts.Ways(["a", "b"], [], network, [], {})
    names = {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "MASTER_ADDR"}
    assert set(found.variables()) == names | {hosts.INTERFACES}
    assert found.variables()[hosts.INTERFACES] == "10.0.0.1=eth0,10.0.0.2=ens3"
    monkeypatch.setenv(name, "eth1")
    assert "OMPI_MCA_btl_tcp_if_include" not in found.variables()
