"""Tests on several hosts, which are namespaces of this machine: `make test-hosts` runs them all."""

import os
import shutil

import hosts
import pytest
from on_hosts import Hosts

from pyrannc import _C


def pytest_collection_modifyitems(items):
    reason = hosts.reason_without()
    if not reason and not os.path.exists(hosts.SSHD):
        reason = f"{hosts.SSHD} was not found (Debian: apt install openssh-server)"
    if not reason and shutil.which("nft") is None:
        reason = "nft was not found (Debian: apt install nftables)"
    if not reason and not (_C.comm.mpi_available() and shutil.which("mpirun")):
        reason = "this build has no MPI, or mpirun was not found"
    if reason:
        for item in items:
            if "hosts" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What all hosts see, as on a network file system."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def two(folder):
    """h1 and h2, which reach each other by ssh, with ranks ready to fork."""
    with Hosts(2, "--ssh", share=[folder]) as two:
        two.prepare_ranks()
        yield two
