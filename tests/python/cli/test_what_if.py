"""``rannc advise``: what it is asked wrongly is said before a model is built."""

import json

import pytest
from typer.testing import CliRunner

from pyrannc import planner, progress
from pyrannc.cli import app

CLUSTER = {
    "format": "rannc-cluster", "version": 1, "hosts": 1, "devices_per_host": 2,
    "device_memory_bytes": 1e9, "intra_host": {"bandwidth_bytes_per_s": 1e12, "latency_ns": 10},
}  # fmt: skip


def test_what_takes_long_says_so_and_not_in_the_answer(tmp_path, monkeypatch):
    node = {
        "name": "n", "op": "linear", "inputs": ["x"], "params": ["w"], "saved_bytes": [100],
        "outputs": [{"bytes_per_row": 100}], "forward_ns": [1e6], "backward_ns": [2e6],
    }  # fmt: skip
    graph = {
        "format": "rannc-graph-profile", "version": 1, "rows": [1], "nodes": [node],
        "inputs": [{"name": "x", "bytes_per_row": 100}], "params": [{"id": "w", "bytes": 1e8}],
    }  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(graph))
    (tmp_path / "c.toml").write_text(planner._toml(CLUSTER))
    monkeypatch.chdir(tmp_path)
    arguments = ["advise", "g.json", "--cluster", "c.toml", "--batch", "8"]
    quick = CliRunner().invoke(app, arguments)
    assert quick.exit_code == 0 and quick.stderr == ""
    begin = progress._Said.begin
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    monkeypatch.setattr(progress, "QUIET_S", 3600.0)  # begun by the first share
    monkeypatch.setattr(
        progress, "advance_share",
        lambda share: (begin(progress._shown), progress.advance(share, 1)),
    )  # fmt: skip
    slow = CliRunner().invoke(app, arguments)
    assert slow.exit_code == 0 and slow.stdout == quick.stdout
    assert slow.stderr.startswith("rannc: planning all cases ...\nrannc: planning all cases: ")
    assert "%, about " in slow.stderr


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--request", "none.json"], "none.json: cannot be read: No such file"),
        (["--request", "c.toml"], "c.toml: is no plan request"),
        (["--request", "[].json"], "[].json: is no plan request ('format' is not its own)"),
        (["--html", "/no/folder/p.html"], "/no/folder/p.html: cannot be written: No such file"),
        (["--devices", "3"], "3 devices cannot be made of c.toml"),
        (["--devices", "two"], "--devices takes numbers above 0, as 512,1024; found 'two'"),
        (["--memory", "-1"], "--memory takes numbers above 0"),
        (["--batch", ""], "--batch takes numbers above 0"),
        (["--recompute", "auto,some"], "--recompute takes auto, never and always; found 'some'"),
        (["--cluster", "[].json"], "[].json: hosts and devices_per_host are numbers above 0"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_no_model_is_built(
    tmp_path, monkeypatch, options, complaint
):
    (tmp_path / "c.toml").write_text(planner._toml(CLUSTER))
    (tmp_path / "[].json").write_text("hosts = 'a'\ndevices_per_host = 2")
    if "--request" in options:
        (tmp_path / "[].json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    # There is no such file to build from, and nobody comes to see.
    arguments = ["advise", "train.py:build", "--cluster", "c.toml", "--batch", "8", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rannc: {complaint}")


BUILD = """
import torch

def build():
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    return torch.nn.Sequential(*layers), (torch.zeros(8, 64),)
"""


@pytest.mark.parametrize(
    "options, taken",
    [
        ("--dtype bf16", "weights in bf16, computation in the same, costs of a100"),
        (
            "--dtype fp32 --autocast bf16 --device h100",
            "weights in fp32, computation in bf16 under autocast, costs of h100",
        ),
    ],
)
def test_the_first_line_says_in_which_precision_it_is(tmp_path, options, taken):
    (tmp_path / "c.toml").write_text(planner._toml(CLUSTER))
    (tmp_path / "train.py").write_text(BUILD)
    target, cluster = f"{tmp_path}/train.py:build", f"{tmp_path}/c.toml"
    arguments = ["advise", target, "--cluster", cluster, "--batch", "8", *options.split()]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == taken
