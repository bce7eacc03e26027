"""Signs of life: what takes more than two seconds is said, on a terminal as a bar that moves."""

import contextlib
import os
import stat
import sys
import threading
import time

QUIET_S = 2.0
LINE_S = 10.0  # between two lines where there is no terminal
#: Set by ``rannc run``, whose ranks have pipes for its terminal: its columns.
TERMINAL = "RANNC_TERMINAL_WIDTH"

_terminal = threading.Lock()  # of the one phase that is shown
_shown = None


def on_terminal() -> bool:
    """Whether what moves can be seen: not in files, and not where a machine reads along (CI)."""
    if os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stderr.isatty() or TERMINAL in os.environ or _width_of_launcher() is not None


def console():
    """A console on the terminal of the job; NO_COLOR is respected."""
    from rich.console import Console

    if sys.stderr.isatty():
        return Console(stderr=True)
    width = os.environ.get(TERMINAL) or _width_of_launcher()
    if width is None:
        return Console(stderr=True)
    return Console(stderr=True, force_terminal=True, width=int(width))


def _width_of_launcher():
    """Columns of the terminal to which mpirun, which has started this process, passes on what comes
    through its pipe; None where this is no such pipe."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return None
    try:
        if not stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode):
            return None
        launcher = os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # closed, or a file of another user
        return None
    try:
        return os.get_terminal_size(launcher).columns if os.isatty(launcher) else None
    finally:
        os.close(launcher)


def log_line(text) -> None:
    """Where there is no terminal, training says it at level info."""
    from pyrannc import log  # which needs the extension, and planning from files does not

    log.info("deploy", text)


def error_line(text) -> None:
    """What a command says there; on a terminal nothing is left of its bar."""
    if not on_terminal():
        print(f"rannc: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def phase(what, shown=True, line=log_line):
    """Around what may take long; ``shown``: on one rank only. Inside of another phase it is what
    that one does meanwhile.

    After two seconds a terminal has a line with the time that passes, and, as far as
    :func:`advance` is called, a bar with the time that is left, until the block ends; elsewhere
    ``line`` gets single lines.
    """
    global _shown
    if not shown:
        yield
        return
    if not _terminal.acquire(blocking=False):
        with part(what):
            yield
        return
    _shown = said = _Said(what, line)
    timer = threading.Timer(QUIET_S, said.begin)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _shown = None
        said.end()
        _terminal.release()


@contextlib.contextmanager
def part(what):
    """Around what the phase at hand does meanwhile, where there is one that this rank shows."""
    around = _shown
    before = around and around.turn_to(what)
    try:
        yield
    finally:
        if around:
            around.turn_to(*before)


def advance(done, total) -> None:
    """How far the phase at hand is: ``done`` of ``total`` parts, which take about as long each.

    Nothing happens outside of a phase, and on ranks that do not show it.
    """
    if (said := _shown) is not None:
        said.advance(min(done, total), total)


def advance_share(share) -> None:
    """The same, from 0 to 1; what falls back begins anew, as a search after another."""
    advance(share, 1)


class _Said:
    def __init__(self, what, line):
        self._what, self._say, self._bar, self._over = what, line, None, False
        self._begin = self._line = time.monotonic()
        self._since = self._begin  # what is done was done
        self._done, self._total = 0, None
        self._lock = threading.Lock()

    def begin(self):
        with self._lock:
            if self._over:
                return
            if not on_terminal():
                self._say(f"{self._what} ...")
                self._bar, self._line = False, time.monotonic()
                return
            from rich.progress import (
                BarColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TimeElapsedColumn(),
                TextColumn("left:"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console(), transient=True, expand=True)
            self._task = self._bar.add_task(self._what, completed=self._done, total=self._total)
            self._bar.start()

    def turn_to(self, what, begin=None, done=0, total=None):
        """Does something else from here on; returns what it did until now."""
        with self._lock:
            before = self._what, self._begin, self._done, self._total
            self._what, self._begin = what, begin or time.monotonic()
            self._since = self._begin
            self._done, self._total = done, total
            if self._bar:
                self._bar.reset(self._task, description=what, completed=done, total=total)
            return before

    def advance(self, done, total):
        with self._lock:
            now = time.monotonic()
            if done < self._done:
                self._since = now
            self._done, self._total = done, total
            if self._bar:
                self._bar.update(self._task, completed=done, total=total)
            elif self._bar is False and now - self._line >= LINE_S and done:
                self._line = now
                left = (now - self._since) * (total - done) / done
                far = f"{done:.0%}" if total == 1 else f"{done:.0f} of {total}"
                self._say(f"{self._what}: {far}, about {left:.0f} s left")

    def end(self):
        with self._lock:
            self._over = True
            if self._bar:
                self._bar.stop()
            if self._bar is not None:
                self._say(f"{self._what}: {time.monotonic() - self._begin:.1f} s")
