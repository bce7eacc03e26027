"""What one host says of itself and of the way to others: a program that is sent to each host.

It needs nothing of RaNNC there. Each line that comes is a request, ``{"do": ..., ...}``, and each
line that goes its answer; it ends with its input.
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

GET_ADDRESS, GET_MASK, GET_FLAGS, GET_MTU = 0x8915, 0x891B, 0x8913, 0x8921  # of SIOC
UP, LOOPBACK = 0x1, 0x8
PIECE = bytes(1 << 16)


def interfaces():
    """All that are up and no loopback: name, address, network and MTU."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:

        def ask(what, name):
            return fcntl.ioctl(asked.fileno(), what, struct.pack("256s", name.encode()))

        mtus = {}
        for _, name in socket.if_nameindex():
            flags = struct.unpack_from("H", ask(GET_FLAGS, name), 16)[0]
            if flags & LOOPBACK or not flags & UP:
                continue
            mtus[name] = struct.unpack_from("i", ask(GET_MTU, name), 16)[0]
            with contextlib.suppress(OSError):  # one without an address
                address = socket.inet_ntoa(ask(GET_ADDRESS, name)[20:24])
                mask = socket.inet_ntoa(ask(GET_MASK, name)[20:24])
                found.append((name, address, mask))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as lines:
        for line in lines:
            number, _, prefix, scope, _, name = line.split()
            if scope == "00" and name in mtus:
                address = str(ipaddress.ip_address(bytes.fromhex(number)))
                found.append((name, address, int(prefix, 16)))
    return [
        {
            "name": name,
            "address": address,
            "network": str(ipaddress.ip_network(f"{address}/{mask}", strict=False)),
            "mtu": mtus[name],
        }
        for name, address, mask in found
    ]


def look(names):
    """Facts that cost nothing: ``names`` are those of hosts, to be looked up."""
    mpirun = shutil.which("mpirun")
    words = [mpirun, "--version"]
    version = subprocess.run(words, capture_output=True, text=True).stdout if mpirun else ""
    known = {}
    for name in names:
        with contextlib.suppress(OSError):
            known[name] = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0][4][0]
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "mpirun": version.splitlines()[0] if version else "",
        "cores": len(os.sched_getaffinity(0)),
        "interfaces": interfaces(),
        "names": known,
    }


PACKAGES = """
import importlib.metadata as metadata, json
found, rows, problems = {}, [], []
try:
    import torch
    found["torch"] = torch.__version__
except Exception as error:
    found["torch"] = f"none ({error})"
try:
    import pyrannc
    found["pyrannc"] = pyrannc.__version__
    from pyrannc.cli import devices
    devices.examine(rows, problems)
except Exception as error:
    found.setdefault("pyrannc", f"none ({error})")
rows = dict(rows)
for name in ("devices", "driver", "NCCL"):
    found[name] = rows.get(name, "unknown")
print(json.dumps([found, problems]))
"""


def packages(environment):
    """Versions of torch and pyrannc and the devices, which take seconds."""
    done = subprocess.run(
        [sys.executable, "-c", PACKAGES],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else [{}, [done.stderr]]


def serve(server):
    """Answers all that connect: as soon as they have said what they want."""
    while True:
        made, _ = server.accept()
        threading.Thread(target=answer, args=(made,), daemon=True).start()


def answer(made):
    with made, contextlib.suppress(OSError):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wish = made.recv(1)
        if wish == b"e":  # an echo for each byte
            while byte := made.recv(1):
                made.sendall(byte)
        elif wish == b"t":  # a word when all has come
            while made.recv(1 << 16):
                pass
            made.sendall(b"!")


def listen(ports):
    """By the name of what uses them, a port of the range ``[first, last]`` on which this host
    listens from now on; of any where the range is empty."""
    found = {}
    for kind, allowed in ports.items():
        for port in range(allowed[0], allowed[1] + 1) if allowed else [0]:
            with contextlib.suppress(OSError):
                dual = socket.has_dualstack_ipv6()
                family = socket.AF_INET6 if dual else socket.AF_INET
                server = socket.create_server(
                    ("", port), family=family, backlog=128, dualstack_ipv6=dual
                )
                threading.Thread(target=serve, args=(server,), daemon=True).start()
                found[kind] = server.getsockname()[1]
                break
    return found


def connect(to, seconds):
    """What is wrong with each connection ``[address, port]``; nothing where it is made."""
    wrong = [""] * len(to)

    def one(index, address, port):
        try:
            with socket.create_connection((address, port), seconds) as made:
                made.sendall(b"e.")
                if made.recv(1) != b".":
                    wrong[index] = "something else listens there"
        except TimeoutError:
            wrong[index] = f"no answer within {seconds} s"
        except OSError as error:
            wrong[index] = error.strerror or str(error)

    threads = [threading.Thread(target=one, args=(i, *each)) for i, each in enumerate(to)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def link(address, port, seconds):
    """Bytes per second to there, and the seconds of the shortest way there and back."""
    with socket.create_connection((address, port), 5) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sendall(b"e")
        ways = []
        for _ in range(10):
            start = time.perf_counter()
            made.sendall(b".")
            made.recv(1)
            ways.append(time.perf_counter() - start)
    with socket.create_connection((address, port), 5) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        made.settimeout(10)
        start = time.perf_counter()
        made.sendall(b"t")
        sent = 0
        while time.perf_counter() - start < seconds:
            sent += made.send(PIECE)
        made.shutdown(socket.SHUT_WR)
        made.recv(1)
        return [sent / (time.perf_counter() - start), min(ways)]


DO = {
    "look": look,
    "packages": packages,
    "listen": listen,
    "connect": connect,
    "link": link,
    "time": time.time,
}


def main():
    for line in sys.stdin.buffer:
        request = json.loads(line)
        do = DO[request.pop("do")]
        try:
            answered = {"is": do(**request)}
        except Exception as error:
            answered = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answered), flush=True)


if __name__ == "__main__":
    main()
