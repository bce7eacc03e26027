"""``rannc advise``: what it is asked wrongly is said before a model is built."""

import pytest
from typer.testing import CliRunner

from pyrannc import planner
from pyrannc.cli import app

CLUSTER = {
    "format": "rannc-cluster", "version": 1, "hosts": 1, "devices_per_host": 2,
    "device_memory_bytes": 1e9, "intra_host": {"bandwidth_bytes_per_s": 1e12, "latency_ns": 10},
}  # fmt: skip


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
