"""Settings that the planner is given."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pyrannc import _C, Config, ConfigError, InfeasibleError, PlanError, RaNNCModule
from pyrannc.planning import planner_inputs


def wrap(**settings):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    load = settings.pop("load_deployment", None)
    config = Config(calibrate=False, self_check=False, **settings)
    return RaNNCModule(model, config=config, load_deployment=load)


@pytest.mark.parametrize(
    "settings, rows, expected",
    [
        ({}, 100, [1, 2, 4, 8, 16, 32]),
        ({"min_pipeline": 3, "max_pipeline": 9}, 100, [4, 8]),
        ({"min_pipeline": 3, "max_pipeline": 3}, 100, [3]),
        ({"min_pipeline": 4}, 6, [4]),
        ({"min_pipeline": 10}, 6, [6]),
        ({}, 0, [1]),
    ],
)
def test_micro_batches_are_as_many_as_the_settings_ask_for(settings, rows, expected):
    assert planner_inputs.micro_batch_counts(rows, Config(**settings)) == expected


def test_an_error_of_the_planner_names_the_setting():
    with pytest.raises(ConfigError, match=r"^pipeline_num: must be from 1 to .*, found 5"):
        wrap(pipeline_num=5)(torch.randn(4, 4))
    forced = _C.partition.Force(stages=2, replicas=[1, 1, 1])
    request = _C.partition.Request(8, force=forced).to_json()
    told = "^replica_nums: names 3 stages, but partition_num = 2$"
    with pytest.raises(ConfigError, match=told), planner_inputs.named_by_settings():
        _C.partition.Request.from_json(request)


def test_tensor_parallel_groups_have_no_segments():
    def asked(**settings):
        return planner_inputs.request(8, Config(**settings), "", "", {}).recompute

    assert asked() == "auto"
    assert asked(tensor_parallel=2) == "stage"
    assert asked(tensor_parallel=2, recompute="always") == "always"
    with pytest.raises(ConfigError, match="'segments' does not go with tensor_parallel"):
        asked(tensor_parallel="auto", recompute="segments")


def test_less_than_a_byte_is_a_limit():
    with pytest.raises(InfeasibleError):
        wrap(mem_limit_gb=1e-12)(torch.randn(4, 4))


def test_a_plan_for_another_job_is_named(tmp_path):
    made = wrap()
    made(torch.randn(4, 4))
    path = tmp_path / "plan.json"
    made.save_deployment(path)
    plan = json.loads(path.read_text())
    plan["stages"][0]["ranks"] = [3]
    del plan["notes"]["world"]
    path.write_text(json.dumps(plan))
    with pytest.raises(PlanError, match=r"plan\.json is no plan for this job: .* rank 3"):
        wrap(load_deployment=path)(torch.randn(4, 4))


# Each rank counted as a host of its own where hosts had other numbers of ranks.
@pytest.mark.parametrize(
    "hosts, expected",
    [
        ("aabb", (2, 2, [])),
        ("abb", (2, 2, [0, 1, 1])),
        ("aaab", (2, 3, [0, 0, 0, 1])),
        ("abab", (2, 2, [0, 1, 0, 1])),
        ("a", (1, 1, [])),
    ],
)
def test_ranks_keep_their_true_hosts(hosts, expected):
    links = SimpleNamespace(intra_host=None, inter_host=None)
    found = planner_inputs.cluster([*hosts], 1000, links)
    assert (found.hosts, found.devices_per_host, found.host_of_rank) == expected
    assert found.ranks == len(hosts)
    mixed = planner_inputs.cluster([*hosts], 1000, links, [1, 0.5][: found.hosts])
    assert mixed.speed_of_host == [1, 0.5][: found.hosts]
