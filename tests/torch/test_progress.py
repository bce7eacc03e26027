"""What takes long says so: on a terminal, in a file, and not where it is quick."""

import io
import sys
import threading

import pytest

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
