"""Settings of RaNNC 0.7 at work, in one process."""

import json

import pytest
import torch
from torch import nn

from pyrannc import Config, ConfigError, RaNNCModule
from pyrannc.profiling import operators


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RANNC_CONF_DIR", raising=False)


def trained(**settings):
    settings = {"calibrate": False, "profile_cache": "off", **settings}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    module = RaNNCModule(model, None, Config(**settings))
    module(torch.ones(6, 4)).mean().backward()
    return module


def test_the_graph_and_each_stage_are_drawn(tmp_path):
    module = trained(dump_graph=True, dump_graph_prefix=tmp_path / "graph")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"graph_r0.dot", "graph_s0.dot"} <= names
    text = (tmp_path / "graph_r0.dot").read_text()
    assert text.startswith("digraph") and "cluster_0" in text
    assert all(f'"{node}" [label=' in text for node in module.plan.stages[0].nodes)
    with pytest.raises(
        ConfigError,
        match=r"dump_graph_prefix: .*nowhere/graph_r0\.dot cannot be written: No such file",
    ):
        trained(dump_graph=True, dump_graph_prefix=tmp_path / "nowhere" / "graph")


def test_measured_costs_are_kept_in_a_file_and_taken_from_it(tmp_path, monkeypatch):
    path = tmp_path / "profiles.json"
    trained(save_graph_profile=True, graph_profile_file=path)
    content = json.loads(path.read_text())
    content["environment"]["device"] = "another one"
    path.write_text(json.dumps(content))
    known = []
    genuine = operators._C.profile.measure

    def measure(*args, **kwargs):
        known.append(kwargs["known"])
        return genuine(*args, **kwargs)

    monkeypatch.setattr(operators._C.profile, "measure", measure)
    trained()
    trained(load_graph_profile=True, graph_profile_file=path)
    assert not known[0] and len(known[1]) == len(content["costs"]) > 1
    with pytest.raises(ConfigError, match=r"load_graph_profile: .*nowhere\.json"):
        trained(load_graph_profile=True, graph_profile_file=tmp_path / "nowhere.json")


def test_results_of_all_operators_are_logged(capfd):
    trained(display_act_value=True)
    lines = [line for line in capfd.readouterr().err.splitlines() if "ops rank 0: aten" in line]
    assert any("tanh" in line and "float32 [6, 4]: mean " in line for line in lines)
    assert any("tanh_backward" in line for line in lines)


def test_changed_settings_are_printed(capsys):
    trained(show_config_items=True, partition_num=1)
    assert "partition_num = 1" in capsys.readouterr().out


def test_the_limit_of_blocks_and_the_factor_of_states_reach_the_planner():
    def blocks(**settings):
        return json.loads(trained(**settings).plan.notes)["blocks"]

    assert blocks(max_partition_num=2) == 2 < blocks()

    class Unknown(torch.optim.SGD):
        pass

    def bytes_with(factor):
        model = nn.Linear(4, 4)
        optimizer = Unknown(model.parameters(), lr=0.1)
        config = Config(calibrate=False, opt_param_factor=factor)
        module = RaNNCModule(model, optimizer, config, elementwise_optimizer=True)
        module(torch.ones(6, 4)).mean().backward()
        return module.plan.stages[0].predicted.optimizer_bytes

    assert bytes_with(3) == 3 * 4 * 20 and bytes_with(0.5) == 4 * 10
