"""``rannc doctor --hosts``: whether several hosts can train together, and what to do if not."""

import sys
import time

from pyrannc.cli import hosts as reach

#: Above this, lines of two hosts' logs cannot be put in order.
CLOCK_S = 2.0
PACKAGES_S = 120  # torch is loaded, which takes long on a busy host or a shared file system


def examine(names: list[str], variables: dict[str, str]) -> tuple[list, list[str]]:
    """The rows of the table, and each problem with what mends it; ``variables`` are set on each
    host."""
    rows, problems, answering = [], [], []
    for name in names:
        try:
            with reach.Host(name) as host:
                host.answer("time")
            answering.append(name)
        except reach.Unreachable as error:
            rows.append((name, "does not answer"))
            problems.append(
                f"{error}\n  This has to print hello, without a password:\n"
                f"  {' '.join(_agent())} {name} {sys.executable} -c 'print(\"hello\")'\n"
                f"  ssh-copy-id {name} gives it this user's key; Python has to have one path on "
                "every host."
            )
    if answering:
        with reach.asked(answering) as hosts:
            found = reach.ways(hosts)
            for host in hosts:
                host.ask("packages", environment=variables)
            packages = [host.hear(PACKAGES_S) for host in hosts]
            _hosts(rows, problems, found, packages)
            _versions(problems, found, packages)
            _clocks(rows, problems, hosts)
            if len(hosts) > 1:
                _names(problems, found)
                _network(rows, problems, found)
                _links(rows, hosts, found)
    return rows, problems


def _agent():
    try:
        return reach.agent()
    except reach.Unreachable:
        return ["ssh"]


def _hosts(rows, problems, found, packages):
    """What each host has."""
    for name, facts, (versions, wrong) in zip(found.names, found.facts, packages, strict=True):
        parts = [f"{facts['cores']} cores", f"Python {facts['python']}"]
        parts += [f"{what} {versions.get(what, 'none')}" for what in ("torch", "pyrannc")]
        rows.append((name, ", ".join([*parts, facts["mpirun"] or "no mpirun"])))
        networks = [
            f"{each['name']} {each['address']} (MTU {each['mtu']})" for each in facts["interfaces"]
        ]
        rows.append((f"{name}: interfaces", ", ".join(networks) or "none that is up"))
        devices = [f"{what}: {versions[what]}" for what in ("devices", "NCCL") if what in versions]
        rows.append((f"{name}: accelerators", "; ".join(devices) or "unknown"))
        problems += [f"{name}: {each.strip()}" for each in wrong]
        if not facts["mpirun"]:
            problems.append(f"{name} has no mpirun: ssh {name} apt install openmpi-bin")


def _versions(problems, found, packages):
    """What has to be the same everywhere."""
    whats = {
        "python": [facts["python"].rpartition(".")[0] for facts in found.facts],
        "mpirun": [facts["mpirun"] for facts in found.facts],
        "torch": [versions.get("torch", "none") for versions, _ in packages],
        "pyrannc": [versions.get("pyrannc", "none") for versions, _ in packages],
    }
    for what, versions in whats.items():
        others = [index for index, version in enumerate(versions) if version != versions[0]]
        if not others:
            continue
        pairs = zip(found.names, versions, strict=True)
        listed = ", ".join(f"{version or 'none'} on {name}" for name, version in pairs)
        wrong = found.names[others[0]]
        mends = {
            "torch": f"ssh {wrong} {sys.executable} -m pip install torch=={versions[0]}",
            "pyrannc": f"install the same release on {wrong}, by the same {sys.executable}; a "
            "variable that Python needs to find it goes along with --env PYTHONPATH",
        }.get(what, f"install the same release on {wrong}")
        problems.append(f"the hosts have different versions of {what}: {listed}\n  {mends}")


def _clocks(rows, problems, hosts):
    """Each host's clock beside this one's, less half the way there and back."""
    for host in hosts:
        start = time.time()
        there = host.answer("time")
        end = time.time()
        ahead = clock_ahead(start, there, end)
        rows.append((f"{host.name}: clock", "as here" if not ahead else f"{ahead:+.1f} s"))
        if ahead:
            problems.append(
                f"the clock of {host.name} is {ahead:+.1f} s from this one's, so the lines of logs "
                f"are out of order: ssh {host.name} chronyc makestep (or timedatectl set-ntp true)"
            )


def clock_ahead(start: float, there: float, end: float) -> float:
    """Seconds by which a clock that showed ``there`` between ``start`` and ``end`` of this one is
    ahead; 0 where that is too little to matter."""
    ahead = there - (start + end) / 2
    return ahead if abs(ahead) > CLOCK_S + (end - start) / 2 else 0.0


def _names(problems, found):
    """Every host knows the names of all: torch's store is found by one."""
    for name, facts in zip(found.names, found.facts, strict=True):
        for index, other in enumerate(found.names):
            if other not in facts["names"]:
                address = found.network.addresses[index] if found.network else "its address"
                problems.append(
                    f"{name} does not know the name {other}: ssh {name} \"echo '{address} {other}' "
                    '>> /etc/hosts", or give addresses: --hosts ADDRESS,...'
                )


def _network(rows, problems, found):
    """Which network it is, and what is wrong with it."""
    shared = {}
    for name, facts in zip(found.names, found.facts, strict=True):
        for each in facts["interfaces"]:
            shared.setdefault(each["address"], []).append((name, each["name"]))
    for address, places in shared.items():
        if len(places) > 1:
            listed = ", ".join(f"{interface} of {name}" for name, interface in places)
            rows.append((address, f"{listed}: leads to no other host, and is not used"))
    if found.network is None:
        problems.append(
            "the hosts have no network in common, and do not know each other by addresses of their "
            "own: give addresses, as rannc doctor --hosts 10.0.0.1,10.0.0.2"
        )
        return
    rows.append(("network", ", ".join(found.network.networks)))
    for network, rate in found.rates.items():
        rows.append((f"{network}", f"{_rate(rate)}, the slower way"))
    given = {name: value for name, value in found.variables().items() if name != reach.INTERFACES}
    rows.append(
        (
            "rannc run sets",
            " ".join(f"{name}={value}" for name, value in given.items()) or "nothing",
        )
    )
    problems += [f"{sentence}\n  {reach.advice()}" for sentence in found.blocked]
    mtus = {}
    for name, facts, address in zip(found.names, found.facts, found.network.addresses, strict=True):
        for each in facts["interfaces"]:
            if each["address"] == address:
                mtus[name] = (each["mtu"], each["name"])
    least = min(mtu for mtu, _ in mtus.values())
    for name, (mtu, interface) in mtus.items():
        if mtu != least:
            problems.append(
                f"{interface} of {name} has an MTU of {mtu}, other hosts {least}, so large frames "
                f"may be lost without a word: ssh {name} ip link set dev {interface} mtu {least}"
            )


def _links(rows, hosts, found):
    """Speed and latency from the first host to each other one, and back."""
    if found.network is None or found.blocked:
        return
    ports = reach.of_all(hosts, "listen", ports=reach.ports_in_use())
    for other in range(1, len(hosts)):
        for here, there in ((0, other), (other, 0)):
            to = {"address": found.network.addresses[there], "port": ports[there]["mpirun"]}
            rate, way = hosts[here].answer("link", **to, seconds=reach.LINK_S)
            text = f"{_rate(rate)}, {way * 500:.2f} ms one way"
            rows.append((f"{found.names[here]} to {found.names[there]}", text))


def _rate(bytes_per_s):
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"
