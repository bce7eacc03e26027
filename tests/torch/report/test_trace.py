"""Timelines of training steps in a file, in one process."""

import collections
import errno
import itertools
import json
import os

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import Config, ConfigError, files

FORETOLD = 1_000_000


def sound(events):
    """The events of a file, after a look at the rules of the Trace Event Format."""
    begun = collections.defaultdict(list)
    for event in events:
        assert event["ph"] in "XMCsf" and isinstance(event["name"], str), event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name"), event
            continue
        assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            begun[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values()), event
    for bars in begun.values():  # of one thread they follow each other
        bars.sort()
        for (_, end), (begin, _) in itertools.pairwise(bars):
            assert begin >= end - 0.0011, "bars overlap"  # a nanosecond of rounding
    return events


def build(**config):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = pyrannc.RaNNCModule(model, optimizer, Config(pipeline_num=2, **config))

    def step():
        optimizer.zero_grad()
        model(torch.ones(8, 8)).square().mean().backward()
        optimizer.step()

    return model, step


def test_a_block_of_steps_is_a_file_of_events_and_what_was_foretold_beside_them(tmp_path):
    model, step = build()
    step()
    with pyrannc.trace(model, tmp_path / "trace.json"):
        step()
        step()
    step()
    events = sound(json.loads((tmp_path / "trace.json").read_text()))
    bars = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    actions = [event for event in bars if event["tid"] == 0]
    for kind in ("forward", "backward"):
        found = [(e["args"]["step"], e["name"]) for e in actions if e["cat"] == kind]
        assert found == [(s, f"{kind} {k}") for s in (0, 1) for k in (0, 1)]
    loop = [event["name"] for event in bars if event["tid"] == 1]
    assert loop == ["forward", "backward", "optimizer"] * 2
    # What the executor does lies in what the loop does.
    whole = [event for event in bars if event["tid"] == 1 and event["name"] != "optimizer"]
    for event in actions:
        assert any(
            each["ts"] <= event["ts"] + 1e-3
            and event["ts"] + event["dur"] <= each["ts"] + each["dur"] + 1e-3
            for each in whole
        ), event
    assert [e for e in events if e["ph"] == "C" and e["name"] == "memory" and e["args"]["MiB"] > 1]
    assert [e for e in events if e["ph"] == "X" and e["pid"] == FORETOLD]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 (stage 0)", "rank 0 (stage 0), predicted"]


def test_the_setting_traces_the_first_steps_and_no_more(tmp_path):
    path = tmp_path / "trace.json"
    _, step = build(trace_events=True, event_trace_file=path, trace_steps=2)
    step()
    step()
    assert {e["args"]["step"] for e in json.loads(path.read_text()) if e["ph"] == "X"} == {0}
    for _ in range(3):
        step()
    events = sound(json.loads(path.read_text()))
    assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {0, 1}


def test_a_file_that_cannot_be_written_is_an_error_before_the_work(tmp_path, monkeypatch):
    path = tmp_path / "no" / "folder" / "trace.json"
    _, step = build(trace_events=True, event_trace_file=path)
    monkeypatch.setattr(pyrannc.deploy, "measure", None)  # nothing is measured
    with pytest.raises(
        ConfigError, match=r"event_trace_file: .*trace.json cannot be written: No su"
    ):
        step()
    _, step = build(metrics_file=path)
    with pytest.raises(ConfigError, match=r"metrics_file: .* cannot be written: No such file"):
        step()
    monkeypatch.undo()
    model, step = build()
    step()
    with pytest.raises(ConfigError, match=r"trace: .* cannot be written"):
        pyrannc.trace(model, path).__enter__()
    step()


def test_a_full_disk_ends_the_trace_with_one_warning_and_not_the_training(
    tmp_path, monkeypatch, capfd
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _, step = build(trace_events=True, event_trace_file=tmp_path / "trace.json", trace_steps=8)
    step()
    monkeypatch.setattr(files, "write_whole", full)
    for _ in range(9):
        step()
    said = capfd.readouterr().err
    assert said.count("the trace ends here") == 1 and "No space left on device" in said


def test_torch_profiler_sees_the_same_actions():
    _, step = build()
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    seen = {event.key: event.count for event in profile.key_averages()}
    for kind in ("forward", "backward"):
        for k in (0, 1):
            assert seen[f"rannc: {kind} of stage 0, micro-batch {k}"] == 1
