"""Addresses under which ranks of other hosts reach this one, and the interfaces that have them."""

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def towards(host: str) -> str:
    """The own address on the way to ``host``; empty where there is none."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, _, _, there in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            return probe.getsockname()[0]
    return ""


def to_meeting_place() -> str:
    """The own address on the way to the host where ranks meet; empty where none is known."""
    return towards(os.environ["MASTER_ADDR"]) if "MASTER_ADDR" in os.environ else ""


def for_others(mine: str, others: list[str]) -> str:
    """The own address that ranks of other hosts reach.

    Args:
        mine: The one towards the meeting place, which is a loopback on the host that it is on.
        others: Those of ranks of other hosts.
    """
    if mine and not ipaddress.ip_address(mine).is_loopback:
        return mine
    for other in others:
        if other and not ipaddress.ip_address(other).is_loopback and (found := towards(other)):
            return found
    # There is no way from any host to the meeting place, as with a group that meets in a file.
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return mine or "127.0.0.1"


def with_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def interface(address: str) -> str:
    """The name of the interface that has ``address``; empty if none has."""
    wanted = ipaddress.ip_address(address)
    if wanted.version == 6:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        known = {ipaddress.ip_address(bytes.fromhex(line.split()[0])): line.split()[-1]
                 for line in lines}  # fmt: skip
        return known.get(wanted, "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(asked.fileno(), _GET_ADDRESS, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
