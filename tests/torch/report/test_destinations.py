"""What settings want written is looked at before the work."""

import importlib.util

import pytest

from pyrannc import Config, ConfigError
from pyrannc.report import destinations


@pytest.fixture(autouse=True)
def with_tensorboard(monkeypatch):
    """As if it were installed: whether it is has no part in this."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    "setting, config",
    [
        ("save_deployment: deployment_file", {"save_deployment": True, "deployment_file": "no/a"}),
        ("event_trace_file", {"trace_events": True, "event_trace_file": "no/a"}),
        ("metrics_file", {"metrics_file": "no/a"}),
        ("metrics_file", {"metrics_file": "folder"}),
        ("tensorboard_dir", {"tensorboard_dir": "file"}),
        ("tensorboard_dir", {"tensorboard_dir": "file/a"}),
        ("dump_graph_prefix", {"dump_graph": True, "dump_graph_prefix": "no/a"}),
        ("graph_profile_file", {"save_graph_profile": True, "graph_profile_file": "no/a"}),
    ],
)
def test_what_cannot_be_written_is_named_with_its_setting(tmp_path, monkeypatch, setting, config):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError, match=f"^{setting}: .*cannot be written"):
        destinations.check(Config(**config))
    assert (tmp_path / "file").read_text() == "kept"


def test_what_can_be_written_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("kept\n")
    config = Config(
        metrics_file="lines", tensorboard_dir="new/folder", trace_events=True, dump_graph=True
    )
    destinations.check(config)
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
    assert (tmp_path / "lines").read_text() == "kept\n"


def test_tensorboard_that_is_not_installed_is_said_before_the_work(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs the package tensorboard, which is not installed"):
        destinations.check(Config(tensorboard_dir="folder"))
