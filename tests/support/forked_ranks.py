"""Ranks that start in milliseconds: forked from one process that has loaded the libraries.

Importing torch, its compiler's front end and transformers takes a rank about six seconds of a core,
its first capture another one, and the tests start hundreds of ranks. So :class:`Parent`, one
process per run of the tests, does both once. What mpirun starts is this file as a small program,
which needs no torch: it hands its files, variables and arguments to the parent, and ends as the
fork ends that runs them::

    python forked_ranks.py SOCKET script.py arguments...

A rank whose variables would have changed how an interpreter or a library starts, and one that
finds no parent, is a process of its own from the start.
"""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import types

# What is read while the interpreter or a library starts, so it must be as the parent's.
AT_START = (
    *("PYTHON", "LD_PRELOAD", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "GLIBC_"),
    *("CUDA_", "TORCH", "PYTORCH_", "HF_"),
)
# What torchrun sets for the ranks that it starts; it is read later.
OF_TORCHRUN = ("TORCHELASTIC_", "TORCH_NCCL_")
NUMBER = struct.Struct("!i")
NO_FORK = 0


class Parent:
    """The process that ranks with these ``variables`` are forked from; its forks end with it."""

    def __init__(self, variables: dict[str, str], folder: str):
        self.address = os.path.join(folder, "ranks")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(self.address)
            server.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--parent", str(server.fileno())],
                env=variables,
                stdin=subprocess.PIPE,  # closed when this process ends, however it does
                pass_fds=[server.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the process and its forks."""
        self._process.stdin.close()
        self._process.wait()


def _at_start(variables) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(AT_START) and not name.startswith(OF_TORCHRUN)
    }


def _be_parent(server: socket.socket) -> list[str]:
    """Forks for whoever asks, until standard input is closed; returns arguments in forks only."""
    start = _at_start(os.environ)  # before the libraries add variables of their own
    _load_libraries()
    gc.freeze()  # the forks share these objects: a collection would copy the pages of all
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while True:
        ready, _, _ = select.select([0, server], [], [])
        if 0 in ready:
            os._exit(0)
        asking, _ = server.accept()
        if os.fork() == 0:
            server.close()
            _die_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _watch_fork(asking, start)
        asking.close()


def _load_libraries() -> None:
    """Imports them, and captures a model: what fake tensors learn of operators is kept."""
    import models
    import torch._dynamo
    import transformers.modeling_utils  # noqa: F401

    import pyrannc.module  # noqa: F401
    from pyrannc.capture.model import capture
    from pyrannc.profiling import operators

    with torch.random.fork_rng(devices=[]):
        captured = capture(models.gpt2(), (), models.language_ids(4, None)[1])
    operators.trace(captured.graph, captured.objects, [1, 2])


def _watch_fork(asking: socket.socket, start: dict[str, str]) -> list[str]:
    """Forks the rank and tells who asked its number and its status; returns in the rank only."""
    length, files, _, _ = socket.recv_fds(asking, NUMBER.size, 3)
    with asking.makefile("rb") as text:
        request = json.loads(text.read(NUMBER.unpack(length)[0]))
    if _at_start(request["variables"]) != start:
        asking.sendall(NUMBER.pack(NO_FORK))
        os._exit(0)
    number = os.fork()
    if number == 0:
        asking.close()
        _die_with_parent()
        return _be_rank(files, **request)
    asking.sendall(NUMBER.pack(number))
    ended = os.pidfd_open(number)
    ready, _, _ = select.select([ended, asking], [], [])
    if ended not in ready:  # the rank that asked was killed
        os.kill(number, signal.SIGKILL)
    status = os.waitpid(number, 0)[1]
    if ended in ready:
        asking.sendall(NUMBER.pack(status))
    os._exit(0)


def _be_rank(files: list[int], variables: dict, folder: str, arguments: list[str]) -> list[str]:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.setpgid(0, 0)  # as mpirun does with its ranks
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0])) if arguments[0] != "-c" else ""
    return arguments


def _die_with_parent() -> None:
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _ask(address: str, arguments: list[str]) -> None:
    """Ends as a fork that runs ``arguments`` ends, or becomes a process of its own."""
    request = {"variables": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}
    text = json.dumps(request).encode()
    parent = socket.socket(socket.AF_UNIX)
    parent.connect(address)
    socket.send_fds(parent, [NUMBER.pack(len(text))], [0, 1, 2])
    parent.sendall(text)
    (fork,) = NUMBER.unpack(parent.recv(NUMBER.size))
    if fork == NO_FORK:
        parent.close()
        os.execv(sys.executable, [sys.executable, *arguments])
    passed_on = signal.SIGTERM, signal.SIGINT, signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2
    for number in passed_on:
        signal.signal(number, lambda received, _: os.kill(fork, received))
    (status,) = NUMBER.unpack(parent.recv(NUMBER.size))
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in passed_on:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _run(arguments: list[str]) -> None:
    """Runs a script, or source text after ``-c``, as the interpreter would have."""
    sys.orig_argv[:] = [sys.executable, *arguments]
    sys.argv = arguments if arguments[0] != "-c" else ["-c", *arguments[2:]]
    name, source = "<string>", arguments[1] if arguments[0] == "-c" else None
    main = types.ModuleType("__main__")
    if source is None:
        main.__file__ = name = arguments[0]
        with open(name, encoding="utf-8") as script:
            source = script.read()
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec"), main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "--parent":
        _run(_be_parent(socket.socket(fileno=int(sys.argv[2]))))
    else:
        _ask(sys.argv[1], sys.argv[2:])
