"""The hosts of a job, asked before it starts: who reaches whom, on which ports and networks."""

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

#: How long a host may take to answer, and a connection to come about.
#: tuned by: deadlines: a firewall that drops is told within a minute, and a name server that does
#: not answer, or a slow link, is no firewall.
#: without it: mpirun waits for ever.
ANSWER_S = 25
CONNECT_S = 8

#: How long the way to a host over one of several networks is measured.
#: tuned by: 10 Mbit/s and 10 Gbit/s are told apart within 0.2 s, and a start takes little longer.
#: without it: messages go over the slower network.
LINK_S = 0.3

AGENT = "OMPI_MCA_plm_rsh_agent"
OOB_PORTS = "OMPI_MCA_oob_tcp_dynamic_ipv4_ports"
FIRST_PORT, NUMBER_OF_PORTS = "OMPI_MCA_btl_tcp_port_min_v4", "OMPI_MCA_btl_tcp_port_range_v4"
USED_BY = {
    "mpirun": ("mpirun's helpers", OOB_PORTS),
    "MPI": ("MPI's messages", f"{FIRST_PORT} and {NUMBER_OF_PORTS}"),
    "sockets": ("Gloo and RaNNC's own connections", "sysctl net.ipv4.ip_local_port_range"),
}


class Unreachable(Exception):
    """A host of a job cannot be asked; says why."""


class Host:
    """One that answers, for the time of a ``with``: this machine, or one that ssh reaches."""

    def __init__(self, name: str):
        self.name = name
        self.is_here = is_here(name)
        program = Path(__file__).with_name("probe.py").read_bytes()
        start = f"import sys; exec(compile(sys.stdin.buffer.read({len(program)}), 'probe', 'exec'))"
        words = [sys.executable, "-IS", "-c", start]
        if not self.is_here:
            words = [*agent(), name, "exec " + shlex.join(words)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._lines = queue.SimpleQueue()
        self._errors = []
        for stream, put in (
            (self._process.stdout, self._lines.put),
            (self._process.stderr, self._errors.append),
        ):
            threading.Thread(target=self._read, args=(stream, put), daemon=True).start()
        self._send(program)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, what: str, **request) -> None:
        """Sends a request, whose answer :meth:`hear` waits for."""
        self._send(json.dumps({"do": what, **request}).encode() + b"\n")

    def hear(self, seconds: float = ANSWER_S):
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            line = None
        if not line:
            said = b"".join(self._errors).decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"no answer within {seconds} s"
            raise Unreachable(f"{self.name} cannot be asked: {why}")
        answer = json.loads(line)
        if "error" in answer:
            raise Unreachable(f"{self.name}: {answer['error']}")
        return answer["is"]

    def answer(self, what: str, **request):
        self.ask(what, **request)
        return self.hear()

    def _send(self, data):
        with contextlib.suppress(OSError):  # what it has printed says why
            self._process.stdin.write(data)
            self._process.stdin.flush()

    @staticmethod
    def _read(stream, put):
        for line in stream:
            put(line)
        put(b"")


def agent() -> list[str]:
    """The command that runs another one on a host, as mpirun takes it."""
    named = os.environ.get(AGENT, "").partition(":")[0].split()
    if named:
        return named
    if shutil.which("ssh") is None:
        raise Unreachable("there is no ssh here")
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]


def counts_of(hosts: str, hostfile: str = "") -> dict[str, int]:
    """The ranks of each host, 0 where none are said, of a list ``a:2,b:2`` and of a file as mpirun
    reads it (``a slots=2``)."""
    found = {}
    for each in hosts.split(","):
        name, _, count = each.strip().partition(":")
        found[name] = found.get(name, 0) + (int(count) if count.isdigit() else 0)
    for line in Path(hostfile).read_text().splitlines() if hostfile else []:
        name, _, rest = line.partition("#")[0].strip().partition(" ")
        slots = rest.partition("slots=")[2].split()
        count = int(slots[0]) if slots and slots[0].isdigit() else 0
        found[name] = found.get(name, 0) + count
    return {name: count for name, count in found.items() if name}


def names_of(hosts: str, hostfile: str = "") -> list[str]:
    """The names of these hosts, each once."""
    return list(counts_of(hosts, hostfile))


def is_here(name):
    """Whether an address of ``name`` is one of this machine."""
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as own:
            own.bind(address)
            return True
    return False


@contextlib.contextmanager
def asked(names: list[str]):
    """The hosts of these names, all started at the same time."""
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(Host(name)) for name in names]
        yield hosts


def of_all(hosts, what, **request):
    """The answers of all hosts to one question, which they think about at the same time."""
    for host in hosts:
        host.ask(what, **request)
    return [host.hear() for host in hosts]


@dataclasses.dataclass(frozen=True)
class Network:
    """A way between all hosts: of each its interface and address there."""

    networks: tuple[str, ...]  #: one, or several with routers between them
    names: tuple[str, ...]
    addresses: tuple[str, ...]


def networks(facts: list[dict]) -> list[Network]:
    """Those that every host is on, with an address that no other one has: bridges such as docker0
    have one address on all hosts, and lead nowhere."""
    found = []
    for network in dict.fromkeys(each["network"] for each in facts[0]["interfaces"]):
        places = [
            next((each for each in fact["interfaces"] if each["network"] == network), None)
            for fact in facts
        ]
        addresses = tuple(place["address"] for place in places if place)
        if len(set(addresses)) == len(facts):
            names = tuple(place["name"] for place in places if place)
            found.append(Network((network,), names, addresses))
    # MPI takes networks of version 6 only where it was built for them.
    return [each for each in found if ":" not in each.networks[0]] or found


def routed(facts: list[dict], names: list[str], first: int) -> Network | None:
    """The networks of the addresses by which host ``first`` knows the others, with routers between
    them; nothing where one of them is no address of its host."""
    found = []
    for name, fact in zip(names, facts, strict=True):
        known = facts[first]["names"].get(name, name)
        place = next((each for each in fact["interfaces"] if each["address"] == known), None)
        if fact is facts[first] and place is None:  # a loopback, as in Debian's /etc/hosts
            others = [other["names"].get(name) for other in facts]
            place = next((each for each in fact["interfaces"] if each["address"] in others), None)
        if place is None:
            return None
        found.append(place)
    return Network(
        tuple(dict.fromkeys(each["network"] for each in found)),
        tuple(each["name"] for each in found),
        tuple(each["address"] for each in found),
    )


def ports_in_use() -> dict[str, list[int]]:
    """By what uses them, the first and the last port that a site has set; empty: any."""
    ranges = {"mpirun": [], "MPI": [1024, 65535], "sockets": []}
    dynamic = os.environ.get(OOB_PORTS, "").partition(",")[0].partition("-")
    with contextlib.suppress(ValueError):
        ranges["mpirun"] = [int(dynamic[0]), int(dynamic[2] or dynamic[0])]
    with contextlib.suppress(ValueError):
        low = int(os.environ.get(FIRST_PORT, "1024"))
        count = int(os.environ.get(NUMBER_OF_PORTS, str(65536 - low)))
        ranges["MPI"] = [low, low + count - 1]
    return ranges


def blocked(hosts, ports: list[dict], network: Network) -> list[tuple[int, int, str, int, str]]:
    """Connections between two hosts that do not come about: from, to, for what, port, why.
    ``ports[host]`` are those on which each listens."""
    size = range(len(hosts))
    ways = [
        [
            (there, kind, port)
            for there in size
            if there != here
            for kind, port in ports[there].items()
        ]
        for here in size
    ]
    for here, host in enumerate(hosts):
        to = [[network.addresses[there], port] for there, _, port in ways[here]]
        host.ask("connect", to=to, seconds=CONNECT_S)
    return [
        (here, there, kind, port, why)
        for here, host in enumerate(hosts)
        for (there, kind, port), why in zip(ways[here], host.hear(), strict=True)
        if why
    ]


def bandwidth(hosts, ports, network: Network, first: int) -> float:
    """Bytes per second of the slowest way between ``first`` and another host, either way."""
    found = []
    for other in range(len(hosts)):
        for here, there in ((first, other), (other, first)):
            if here != there:
                port = ports[there]["mpirun"]
                to = {"address": network.addresses[there], "port": port, "seconds": LINK_S}
                found.append(hosts[here].answer("link", **to)[0])
    return min(found)


@dataclasses.dataclass(frozen=True)
class Ways:
    """What the hosts of a job said of each other."""

    names: list[str]
    facts: list[dict]
    network: Network | None  #: the fastest whose ports are open, else one that is blocked
    blocked: list[str]  #: sentences on connections that do not come about on it
    rates: dict[str, float]  #: bytes per second of the networks that were compared

    def variables(self) -> dict[str, str]:
        """What has MPI, Gloo and NCCL use the network, without what a user has set."""
        if self.network is None or ":" in self.network.networks[0]:
            return {}
        places = zip(self.network.addresses, self.network.names, strict=True)
        found = {
            "OMPI_MCA_btl_tcp_if_include": ",".join(self.network.networks),
            "OMPI_MCA_oob_tcp_if_include": ",".join(self.network.networks),
            "MASTER_ADDR": self.network.addresses[0],
            INTERFACES: ",".join(f"{address}={name}" for address, name in places),
        }
        set_by_user = {name.replace("_exclude", "_include") for name in os.environ}
        return {name: value for name, value in found.items() if name not in set_by_user}


#: For each address of a host its interface: what rank.py sets Gloo's and NCCL's variables by.
INTERFACES = "RANNC_RUN_INTERFACES"


def ways(hosts: list[Host]) -> Ways:
    """Asks all hosts, and has them connect to each other.

    Raises:
        Unreachable: One of them does not answer.
    """
    names = [host.name for host in hosts]
    first = next((index for index, host in enumerate(hosts) if host.is_here), 0)
    facts = of_all(hosts, "look", names=names)
    ports = of_all(hosts, "listen", ports=ports_in_use())
    candidates = networks(facts)
    if not candidates and (other := routed(facts, names, first)) is not None:
        candidates = [other]
    told = {network: blocked(hosts, ports, network) for network in candidates}
    open_ones = [network for network in candidates if not told[network]]
    if not open_ones:
        # mpirun would go by the addresses of the names.
        known = set(facts[first]["names"].values())
        chosen = max(candidates, key=lambda it: len(known & set(it.addresses)), default=None)
        sentences = _sentences(names, chosen, told[chosen]) if chosen else []
        return Ways(names, facts, chosen, sentences, {})
    rates = {}
    if len(open_ones) > 1:
        rates = {each: bandwidth(hosts, ports, each, first) for each in open_ones}
        chosen = max(open_ones, key=rates.__getitem__)
    else:
        chosen = open_ones[0]
    by_name = {" and ".join(each.networks): rate for each, rate in rates.items()}
    return Ways(names, facts, chosen, [], by_name)


def _sentences(names, network, connections):
    """One for each pair of hosts: who could not reach whom, on which ports."""
    found = []
    for (here, there, why), group in itertools.groupby(
        connections, key=lambda it: (*it[:2], it[4])
    ):
        ports = ", ".join(f"{port} ({USED_BY[kind][0]})" for _, _, kind, port, _ in group)
        found.append(
            f"{names[here]} could not connect to {names[there]} at {network.addresses[there]} on "
            f"the ports {ports}: {why}"
        )
    return found


def check(names: list[str]) -> Ways:
    """:func:`ways` of the hosts of these names."""
    with asked(names) as hosts:
        return ways(hosts)


def advice() -> str:
    """What to do about a firewall."""
    ranges = []
    for kind, allowed in ports_in_use().items():
        text = f"{allowed[0]} to {allowed[1]}" if allowed else "of net.ipv4.ip_local_port_range"
        ranges.append(f"  {USED_BY[kind][0]}: ports {text} ({USED_BY[kind][1]})")
    return (
        "A firewall between the hosts drops or refuses what comes. Open these ports between them, "
        "or set fewer and open those (docs/clusters.md):\n" + "\n".join(ranges)
    )
