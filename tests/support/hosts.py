#!/usr/bin/env python3
"""Several hosts on one Linux machine: namespaces with a network, a name, /tmp, /dev/shm, ~/.cache
and processes of their own. Needs root, iproute2 and util-linux; ``--ssh`` needs openssh-server,
``--firewall`` nftables.

  hosts.py up 2 --rate 100mbit --delay-ms 5   makes h1 and h2, 10.77.0.1 and 10.77.0.2
  hosts.py on h1 CMD...                       runs CMD on h1, here ("all": on each in turn)
  hosts.py rsh h1 CMD...                      does as ssh would: for Open MPI's plm_rsh_agent
  hosts.py cut h1 | join h1                   takes the host off its network, and back
  hosts.py slow h1 0.5                        gives all its processes together half a core
  hosts.py off h1                             ends every process of the host at once
  hosts.py down                               removes all of it

``--state FOLDER`` before the verb names another set of hosts.
"""

import argparse
import contextlib
import fcntl
import heapq
import os
import random
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

SPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
SWITCH = "switch"
SSHD = "/usr/sbin/sshd"
TAP, NO_HEADER, SET_INTERFACE = 0x0002, 0x1000, 0x400454CA  # of linux/if_tun.h


def reason_without() -> str:
    """Why this machine cannot have such hosts; empty if it can."""
    if os.geteuid() != 0:
        return "hosts on one machine are made by root"
    missing = [name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"hosts on one machine need {', '.join(missing)}"
    tried = subprocess.run(["unshare", *SPACES, "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def system(*words):
    return subprocess.run([str(word) for word in words], check=True)


def pid(state, name):
    return int((state / name / "pid").read_text())


def inside(state, name, *words, spaces=SPACES):
    """The command that runs ``words`` in namespaces of a host."""
    return ["nsenter", "-t", str(pid(state, name)), *spaces, "--", *map(str, words)]


def processors(state, name):
    """The folder of the control group that limits a host's processor time."""
    return Path("/sys/fs/cgroup/cpu") / f"hosts-{str(state).strip('/').replace('/', '-')}" / name


def start(state, name, *command):
    """Starts the process that holds a host's namespaces, and notes its number."""
    log = (state / name / "log").open("w")
    command = [sys.executable, __file__, "--state", state, *command]
    outer = subprocess.Popen(
        ["unshare", *SPACES, "--fork", "--kill-child=KILL", "--mount-proc", *map(str, command)],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    (state / name / "outer").write_text(str(outer.pid))
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    for _ in range(400):
        if (state / name / "ready").exists():
            (state / name / "pid").write_text(children.read_text().split()[0])
            return
        time.sleep(0.05)
    raise SystemExit(f"{name} did not start: {(state / name / 'log').read_text()}")


def up(state, a):
    if state.exists():
        raise SystemExit(f"{state} is there: hosts.py down first")
    names = [f"h{i + 1}" for i in range(a.count)]
    four = {name: f"10.77.0.{i + 1}" for i, name in enumerate(names)}
    six = {name: f"fd77::{i + 1}" for i, name in enumerate(names)}
    for name in (SWITCH, *names):
        shown = {} if a.no_names or name == SWITCH else six if a.ipv6 else four
        own = f"127.0.1.1 {name}\n" if a.own_name_is_loopback and name != SWITCH else ""
        write_files(state / name, shown, own)
    if a.ssh:
        system("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", state / "key")
    start(state, SWITCH, "init", SWITCH)
    on_switch = inside(state, SWITCH, spaces=("--net",))
    system(*on_switch, "ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
    system(*on_switch, "ip", "link", "set", "br0", "up")
    for name in names:
        told = a.same_name or name
        ssh = ["--ssh"] if a.ssh else []
        start(state, name, "init", name, "--told", told, *ssh, "--share", *a.share)
    delayed = bool(a.delay_ms or a.loss)
    if delayed:  # netem is not in every kernel
        command = [sys.executable, __file__, "relay", str(a.delay_ms), str(a.loss), *names]
        relay = subprocess.Popen(
            [*on_switch, *command], stdin=subprocess.DEVNULL, start_new_session=True
        )
        (state / "relay").write_text(str(relay.pid))
        time.sleep(0.5)
    for name in names:
        connect(state, name, delayed, on_switch, a.mtu)
        inner = inside(state, name)
        system(*inner, "ip", "link", "set", "lo", "up")
        if not a.ipv6:
            system(*inner, "ip", "address", "add", f"{four[name]}/24", "dev", "eth0")
        system(*inner, "ip", "address", "add", f"{six[name]}/64", "dev", "eth0", "nodad")
        system(*inner, "ip", "link", "set", "eth0", "up")
        if a.rate:
            limit(state, name, a.rate)
        if a.trap:  # the same address on every host, as Docker's bridge has it
            system(*inner, "ip", "link", "add", "docker0", "type", "bridge")
            system(*inner, "ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
            system(*inner, "ip", "link", "set", "docker0", "up")
        if a.second:
            second(state, name, a.second, on_switch)
        if a.firewall:  # what is new comes in by ssh alone; the rest is dropped without a word
            rules = (
                "table inet f { chain c { type filter hook input priority 0; policy drop\n"
                "iif lo accept\nct state established,related accept\ntcp dport 22 accept\n"
                "meta l4proto { icmp, icmpv6 } accept\n}\n}\n"
            )
            system(*inner, "nft", rules)


def write_files(folder, addresses, own):
    """Makes a host's folder, with its /etc/hosts and an empty /etc/resolv.conf."""
    for part in ("tmp", "cache", "ssh", "run"):
        (folder / part).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address} {other}" for other, address in addresses.items()]
    (folder / "hosts").write_text(own + "\n".join(lines) + "\n")
    (folder / "resolv.conf").write_text("")


def connect(state, name, delayed, on_switch, mtu):
    """Gives a host its eth0: an end of a pair at the bridge, or of the relay."""
    if delayed:
        system(*on_switch, "ip", "link", "set", f"t-{name}", "netns", pid(state, name))
        system(*inside(state, name, "ip", "link", "set", f"t-{name}", "name", "eth0", "mtu", mtu))
        return
    system(*on_switch, "ip", "link", "add", f"v-{name}", "mtu", mtu, "type", "veth",
           "peer", "name", "eth0", "mtu", mtu, "netns", pid(state, name))  # fmt: skip
    system(*on_switch, "ip", "link", "set", f"v-{name}", "master", "br0", "up")


def limit(state, name, rate, device="eth0"):
    """Limits what a host sends."""
    system(*inside(state, name, "tc", "qdisc", "replace", "dev", device, "root", "tbf",
                   "rate", rate, "burst", "64kb", "latency", "100ms"))  # fmt: skip


def second(state, name, rate, on_switch):
    """Gives a host an eth1 on a network of its own."""
    number = name.removeprefix("h")
    if number == "1":
        system(*on_switch, "ip", "link", "add", "br1", "type", "bridge", "forward_delay", "0")
        system(*on_switch, "ip", "link", "set", "br1", "up")
    system(*on_switch, "ip", "link", "add", f"w-{name}", "type", "veth",
           "peer", "name", "eth1", "netns", pid(state, name))  # fmt: skip
    system(*on_switch, "ip", "link", "set", f"w-{name}", "master", "br1", "up")
    inner = inside(state, name)
    system(*inner, "ip", "address", "add", f"10.78.0.{number}/24", "dev", "eth1")
    system(*inner, "ip", "link", "set", "eth1", "up")
    limit(state, name, rate, "eth1")


def init(state, a):
    """The first process of a host: mounts, then reaps."""
    own = state / a.host
    for share in a.share:  # seen by all hosts, as a network file system would be
        if share.startswith("/tmp/"):
            (own / share[1:]).mkdir(parents=True, exist_ok=True)
            system("mount", "--bind", share, own / share[1:])
    system("hostname", a.told)
    for file in ("hosts", "resolv.conf"):
        system("mount", "--bind", own / file, f"/etc/{file}")
    for part, where in (("cache", ".cache"), ("ssh", ".ssh")):
        (Path.home() / where).mkdir(exist_ok=True)
        system("mount", "--bind", own / part, Path.home() / where)
    system("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    system("mount", "--bind", own / "run", "/run")
    if a.ssh:
        start_sshd(state / "key")
    (own / "ready").touch()
    system("mount", "--rbind", own / "tmp", "/tmp")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def start_sshd(key):
    keys = Path.home() / ".ssh"
    shutil.copy(key, keys / "id_ed25519")
    shutil.copy(key.with_suffix(".pub"), keys / "authorized_keys")
    (keys / "config").write_text("StrictHostKeyChecking accept-new\nLogLevel ERROR\n")
    for file in keys.iterdir():
        file.chmod(0o600)
    Path("/run/sshd").mkdir()
    subprocess.Popen([SSHD, "-D", "-e", "-f", "/dev/null", "-h", str(key),
                      "-o", "PermitRootLogin=prohibit-password"])  # fmt: skip


def relay(_, a):
    """A switch that delays frames, and loses some."""
    taps, where, queue = [], {}, []
    for name in a.hosts:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH22x", f"t-{name}".encode(), TAP | NO_HEADER)
        fcntl.ioctl(tap, SET_INTERFACE, request)
        taps.append(tap)
    number = 0
    while True:
        wait = max(0, queue[0][0] - time.monotonic()) if queue else None
        for tap in select.select(taps, [], [], wait)[0]:
            with contextlib.suppress(OSError):
                for _ in range(64):
                    frame = os.read(tap, 65536)
                    where[frame[6:12]] = tap
                    if random.random() >= a.loss:
                        number += 1
                        due = time.monotonic() + a.delay_ms / 1000
                        heapq.heappush(queue, (due, number, tap, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(queue)
            known = where.get(frame[:6])
            for tap in taps if known is None else [known]:
                if tap != source:
                    with contextlib.suppress(OSError):
                        os.write(tap, frame)


def names_up(state):
    return sorted(path.parent.name for path in state.glob("h*/pid"))


def join_group(state, name):
    """Puts this process, and so what it starts, under the limit that slow() has set."""
    with contextlib.suppress(FileNotFoundError):
        (processors(state, name) / "cgroup.procs").write_text(str(os.getpid()))


def on(state, a):
    code = 0
    for name in names_up(state) if a.host == "all" else [a.host]:
        join_group(state, name)
        command = f"cd {shlex.quote(os.getcwd())} 2>/dev/null; exec {shlex.join(a.command)}"
        code = subprocess.run(inside(state, name, "sh", "-c", command)).returncode or code
    raise SystemExit(code)


def rsh(state, a):
    join_group(state, a.host)
    command = inside(state, a.host, "sh", "-c", " ".join(a.command))
    os.execvp(command[0], command)


def link(state, a):
    direction = "down" if a.what == "cut" else "up"
    system(*inside(state, a.host, "ip", "link", "set", "eth0", direction))


def slow(state, a):
    group = processors(state, a.host)
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(str(int(a.cores * 100_000)))
    space = os.readlink(f"/proc/{pid(state, a.host)}/ns/pid")
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns/pid") == space:
                (group / "cgroup.procs").write_text(entry.name)


def off(state, a):
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid(state, a.host), signal.SIGKILL)


def down(state, _):
    for number in [*state.glob("*/pid"), *state.glob("*/outer"), *state.glob("relay")]:
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(number.read_text()), signal.SIGKILL)
    for _ in range(50):
        time.sleep(0.1)
        if not any((group / "cgroup.procs").read_text() for group in groups(state)):
            break
    if str(state) in Path("/proc/mounts").read_text():
        raise SystemExit(f"something is mounted in {state}")
    shutil.rmtree(state, ignore_errors=True)
    for group in groups(state):
        group.rmdir()


def groups(state):
    """The control groups of these hosts, the outer one last."""
    outer = processors(state, "any").parent
    return [*outer.glob("*/"), outer] if outer.exists() else []


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=Path("/var/tmp/rannc-hosts"))
    verbs = parser.add_subparsers(required=True)

    def verb(name, do, *arguments):
        one = verbs.add_parser(name)
        one.set_defaults(do=do, what=name)
        for argument in arguments:
            one.add_argument(argument)
        return one

    one = verb("up", up)
    one.add_argument("count", type=int)
    one.add_argument("--rate", default="", help="of each host's link, such as 100mbit")
    one.add_argument("--delay-ms", type=float, default=0, help="one way")
    one.add_argument("--loss", type=float, default=0, help="of frames, such as 0.01")
    one.add_argument("--mtu", default="1500")
    one.add_argument("--ipv6", action="store_true", help="no IPv4 but the loopback")
    one.add_argument("--no-names", action="store_true", help="/etc/hosts knows localhost alone")
    one.add_argument("--same-name", default="", help="the hostname of all hosts")
    one.add_argument("--own-name-is-loopback", action="store_true", help="127.0.1.1, as in Debian")
    one.add_argument("--trap", action="store_true", help="a docker0 with one address on all hosts")
    one.add_argument("--second", default="", metavar="RATE", help="a second network, 10.78.0.0/24")
    one.add_argument("--firewall", action="store_true", help="drops what is new, but for ssh")
    one.add_argument("--ssh", action="store_true", help="sshd on every host, with one key")
    one.add_argument("--share", nargs="*", default=[], help="folders in /tmp that all hosts see")
    one = verb("init", init, "host")
    one.add_argument("--told", default=SWITCH)
    one.add_argument("--ssh", action="store_true")
    one.add_argument("--share", nargs="*", default=[])
    one = verb("relay", relay)
    one.add_argument("delay_ms", type=float)
    one.add_argument("loss", type=float)
    one.add_argument("hosts", nargs="+")
    for name, do in (("on", on), ("rsh", rsh)):
        verb(name, do, "host").add_argument("command", nargs=argparse.REMAINDER)
    for name in ("cut", "join"):
        verb(name, link, "host")
    verb("slow", slow, "host").add_argument("cores", type=float)
    verb("off", off, "host")
    verb("down", down)
    a = parser.parse_args()
    a.do(a.state, a)


if __name__ == "__main__":
    main()
