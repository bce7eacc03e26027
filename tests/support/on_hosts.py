"""Jobs on several hosts of one machine, which :mod:`hosts` makes."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forked_ranks
import hosts
import mpi

PROGRAM = hosts.__file__
PYTHON = sys.executable
ADDRESS = "/tmp/ranks"  # of the process of a host that ranks are forked from
VARIABLES = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


class Hosts:
    """Hosts h1, h2, ... for the time of a ``with``; nothing of them is left after it."""

    def __init__(self, count: int, *options: str, share=()):
        """``options`` are those of ``hosts.py up``; every host sees the folders ``share``."""
        self.names = [f"h{number + 1}" for number in range(count)]
        self._shared = [str(each) for each in (mpi.ROOT, *share) if str(each).startswith("/tmp/")]
        self._options = options
        self._started = []

    def __enter__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="rannc-hosts-", dir="/var/tmp"))
        self.state = self._folder / "state"
        shares = ["--share", *self._shared] if self._shared else []
        try:
            self.do("up", str(len(self.names)), *self._options, *shares)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._started:
            if process.poll() is None:
                mpi.kill(process.pid)
                process.wait()
        self.do("down")
        shutil.rmtree(self._folder)

    def do(self, *verb: str) -> None:
        """Runs ``hosts.py`` with these arguments."""
        command = [PYTHON, PROGRAM, "--state", str(self.state), *verb]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def inside(self, name: str, *words: str) -> list[str]:
        return hosts.inside(self.state, name, *words)

    def check(self, name: str, *words: str) -> str:
        """What a command prints on a host; it has to succeed."""
        done = subprocess.run(self.inside(name, *words), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(
        self, name: str, command, env=None, spaces=hosts.SPACES, **options
    ) -> subprocess.Popen:
        """Starts a command on a host, or in some of its namespaces; it ends with the hosts, at the
        latest."""
        process = subprocess.Popen(
            hosts.inside(self.state, name, *command, spaces=spaces),
            env=self.environment() | (env or {}),
            cwd=mpi.ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        self._started.append(process)
        return process

    def run(
        self, name: str, command, env=None, timeout=240, spaces=hosts.SPACES
    ) -> subprocess.CompletedProcess:
        """Runs a command on a host to its end; at the deadline the test fails with what it has
        printed until then."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = self.start(name, command, env, spaces, stdout=out, stderr=err)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                mpi.kill(process.pid)
                process.wait()
                raise AssertionError(
                    f"not finished after {timeout} s; until then:\n{_text(out)}{_text(err)}"
                ) from None
            return subprocess.CompletedProcess(command, process.returncode, _text(out), _text(err))

    def environment(self) -> dict[str, str]:
        """Variables of a user at a terminal: nothing of what ``rannc run`` sets for its ranks."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return kept | {
            "PYTHONPATH": f"{mpi.ROOT}:{mpi.ROOT / 'tests/support'}",
            # Containers: root, as in pyrannc.launch.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def prepare_ranks(self) -> None:
        """Loads the libraries once on each host, so that ranks of :func:`rank` start at once."""
        for name in self.names:
            self.prepare_ranks_of(name)

    def prepare_ranks_of(self, name: str) -> None:
        code = (
            "import os, socket, sys; server = socket.socket(socket.AF_UNIX);"
            f"server.bind('{ADDRESS}'); server.listen(64); server.set_inheritable(True);"
            f"os.execv(sys.executable, [sys.executable, {forked_ranks.__file__!r}, '--parent',"
            "str(server.fileno())])"
        )
        parent = subprocess.Popen(
            self.inside(name, PYTHON, "-c", code),
            env=self.environment() | VARIABLES,
            cwd=mpi.ROOT,
            stdin=subprocess.PIPE,  # it ends when this is closed
            start_new_session=True,
        )
        self._started.append(parent)
        for _ in range(600):
            if subprocess.run(self.inside(name, "test", "-S", ADDRESS)).returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError(f"the process from which ranks of {name} fork did not start")


def rank(*script: str) -> list[str]:
    """Arguments of Python for a script whose process is forked from its host's prepared one, if it
    has the variables of ``VARIABLES``."""
    return [forked_ranks.__file__, ADDRESS, *map(str, script)]


def _text(file) -> str:
    file.seek(0)
    return file.read()
