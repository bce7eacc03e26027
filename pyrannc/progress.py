"""Signs of life: what takes more than two seconds is said, on a terminal as a bar that moves."""

import contextlib
import os
import sys
import threading
import time

from pyrannc import log

QUIET_S = 2.0
#: Set by ``rannc run``, whose ranks have pipes for its terminal: its columns.
TERMINAL = "RANNC_TERMINAL_WIDTH"


def on_terminal() -> bool:
    """Whether what moves can be seen: not in files, and not where a machine reads along (CI)."""
    if os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stderr.isatty() or TERMINAL in os.environ


def console():
    """A console on the terminal of the job; NO_COLOR is respected."""
    from rich.console import Console

    width = os.environ.get(TERMINAL)
    if sys.stderr.isatty() or width is None:
        return Console(stderr=True)
    return Console(stderr=True, force_terminal=True, width=int(width))


@contextlib.contextmanager
def phase(what, shown=True):
    """Around what may take long; ``shown``: on one rank only.

    After two seconds a terminal has a line with the time that passes, until the block ends;
    elsewhere the log has one line, at level info.
    """
    if not shown:
        yield
        return
    said = _Said(what)
    timer = threading.Timer(QUIET_S, said.begin)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        said.end()


class _Said:
    def __init__(self, what):
        self._what, self._bar, self._over = what, None, False
        self._begin = time.monotonic()
        self._lock = threading.Lock()

    def begin(self):
        with self._lock:
            if self._over:
                return
            if not on_terminal():
                log.info("deploy", f"{self._what} ...")
                self._bar = False
                return
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn(self._what), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console(), transient=True)
            self._bar.add_task("", total=None)
            self._bar.start()

    def end(self):
        with self._lock:
            self._over = True
            if self._bar:
                self._bar.stop()
            if self._bar is not None:
                log.info("deploy", f"{self._what}: {time.monotonic() - self._begin:.1f} s")
