"""What takes long says so: on a terminal, in a file, and not where it is quick."""

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest
import torch

import pyrannc
from pyrannc import log, progress


@pytest.fixture
def said(monkeypatch):
    """Lines of the log; phases count as long at once."""
    lines = []
    monkeypatch.setattr(log, "info", lambda _, text: lines.append(text))
    for variable in ("CI", "TERM", progress.TERMINAL):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return lines


def test_a_quick_phase_says_nothing_and_a_long_one_what_it_is_and_took(said, monkeypatch):
    with progress.phase("planning"):
        pass
    assert said == []
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    heard = threading.Event()
    monkeypatch.setattr(log, "info", lambda _, text: (said.append(text), heard.set()))
    with progress.phase("planning"):
        assert heard.wait(timeout=60)
    assert said[0] == "planning ..." and said[1].startswith("planning: ")
    with progress.phase("planning", shown=False):
        pass
    assert len(said) == 2


def test_what_moves_is_for_terminals_only(said, monkeypatch):
    assert not progress.on_terminal()
    monkeypatch.setenv(progress.TERMINAL, "97")  # a rank of `rannc run` on a terminal
    assert progress.on_terminal() and progress.console().width == 97
    monkeypatch.setenv("CI", "true")
    assert not progress.on_terminal()
    monkeypatch.delenv("CI")
    monkeypatch.setenv("TERM", "dumb")  # what `rannc run` sets where its output is a file
    assert not progress.on_terminal()


def test_a_phase_in_another_is_what_that_one_does_meanwhile_and_how_far(said, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    heard = threading.Event()
    monkeypatch.setattr(log, "info", lambda _, text: (said.append(text), heard.set()))
    progress.advance(1, 2)  # of no phase
    with progress.phase("starting"):
        assert heard.wait(timeout=60)
        progress.advance(1, 4)
        with progress.phase("reading"), progress.part("opening"):
            progress.advance(3, 2)
        progress.advance(2, 4)
    assert [text.split(",")[0] for text in said[:-1]] == [
        "starting ...", "starting: 1 of 4", "opening: 2 of 2", "starting: 2 of 4",
    ]  # fmt: skip
    assert said[-1].startswith("starting: ")


def test_a_share_is_told_in_per_cent_and_a_search_after_another_begins_anew(said, monkeypatch):
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "QUIET_S", 3600.0)  # begun by hand
    lines = []
    with progress.phase("planning", line=lines.append):
        progress._shown.begin()
        for now[0], share in ((10.0, 0.5), (20.0, 0.25), (30.0, 0.5), (31.0, 1.0)):
            progress.advance_share(share)
    assert lines == [
        "planning ...", "planning: 50%, about 10 s left",
        "planning: 25%, about 0 s left",  # the second one has just been begun
        "planning: 50%, about 10 s left", "planning: 100%, about 0 s left", "planning: 31.0 s",
    ]  # fmt: skip
    assert said == []


def test_the_search_of_a_job_tells_how_far_it_is(monkeypatch):
    heard = []
    monkeypatch.setattr(progress, "advance_share", heard.append)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    model = pyrannc.RaNNCModule(model, torch.optim.SGD(model.parameters(), 0.1))
    model(torch.ones(2, 4)).sum().backward()
    assert heard == sorted(heard) and 0 < heard[0] <= heard[-1] <= 1


def test_a_bar_has_the_time_that_is_left_and_no_color_where_none_is_wanted(
    said, monkeypatch, capsys
):
    monkeypatch.setenv(progress.TERMINAL, "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(progress, "QUIET_S", 3600.0)  # begun by hand
    with progress.phase("planning [fast]"):
        progress._shown.begin()
        for done in range(1, 4):
            progress.advance(done, 4)
        progress._shown._bar.refresh()
    raw = capsys.readouterr().err
    drawn = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", raw)
    assert not re.search(r"\x1b\[3\dm", raw)
    assert "planning [fast]" in drawn and "left:" in drawn and said[-1].startswith("planning")


def test_ranks_of_a_bare_mpirun_find_its_terminal(said, monkeypatch):
    """The rank's stderr is a pipe, and its parent's a terminal."""
    leader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 91, 0, 0))
    check = (
        "import subprocess, sys\n"
        "child = 'from pyrannc import progress; print(progress._width_of_launcher())'\n"
        "print(subprocess.run([sys.executable, '-c', child], stdout=subprocess.PIPE,"
        " stderr=subprocess.PIPE if sys.argv[1] == 'pipe' else None, text=True).stdout, end='')\n"
    )
    environment = os.environ | {"OMPI_COMM_WORLD_RANK": "0"}
    found = []
    for stderr, kind in ((terminal, "pipe"), (subprocess.DEVNULL, "pipe"), (terminal, "itself")):
        command = [sys.executable, "-c", check, kind]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        found.append(done.stdout.strip())
    os.close(leader)
    os.close(terminal)
    assert found == ["91", "None", "None"]
