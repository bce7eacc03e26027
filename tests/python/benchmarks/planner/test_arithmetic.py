"""Two evaluators, written apart from each other, agree on every plan: the core's and the one of
benchmarks/planner/arithmetic.py."""

import copy
import json
import random
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.planner import arithmetic
from benchmarks.planner.arithmetic_parts import StageVerdict
from benchmarks.planner.random_plans import (
    as_version_2,
    random_cluster,
    random_graph,
    random_plan,
    random_request,
)
from pyrannc import _C

FIELDS = StageVerdict.__dataclass_fields__
TOML = """format = "rannc-cluster"
version = {version}
hosts = {hosts}
devices_per_host = {devices_per_host}
device_memory_bytes = {device_memory_bytes!r}
{price}[intra_host]
bandwidth_bytes_per_s = {intra_host[bandwidth_bytes_per_s]!r}
latency_ns = {intra_host[latency_ns]!r}
[inter_host]
bandwidth_bytes_per_s = {inter_host[bandwidth_bytes_per_s]!r}
latency_ns = {inter_host[latency_ns]!r}
links_per_host = {inter_host[links_per_host]}
"""


def price_line(cluster):
    key = "price_per_device_hour"
    return f"{key} = {cluster[key]!r}\n" if key in cluster else ""


def core_verdict(graph, cluster, request, plan):
    return _C.partition.evaluate(
        _C.cost.GraphProfile.from_json(json.dumps(graph)),
        _C.cost.Cluster.from_toml(
            TOML.format(**cluster, price=price_line(cluster))
            + "".join(f"[[host]]\nspeed = {host['speed']!r}\n" for host in cluster.get("host", []))
        ),
        _C.partition.Request.from_json(json.dumps(request)),
        _C.plan.Plan.from_json(json.dumps(plan)),
    )


def random_case(seed, version=1):
    dice = random.Random(seed)
    graph = random_graph(dice, dice.randrange(1, 15))
    cluster, request = random_cluster(dice), random_request(dice)
    if version == 2:
        as_version_2(dice, graph)
        cluster |= {"version": 2, "price_per_device_hour": dice.choice([0, 2.5])}
        request |= {
            "version": 2,
            "master_bytes_per_param_byte": dice.choice([0, 2]),
            "shard_optimizer": dice.random() < 0.5,
        }
        if seed % 2:  # hosts that are not equally fast
            speeds = [{"speed": dice.choice([1, 0.25, 1.5])} for _ in range(cluster["hosts"])]
            cluster |= {"version": 3, "host": speeds}
    return dice, graph, cluster, request, random_plan(dice, graph, cluster, request)


def test_the_page_s_example():
    text = (Path(__file__).parents[4] / "docs" / "planner-files.md").read_text()
    blocks = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    graph, request, plan, second = map(json.loads, blocks)
    cluster = tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    verdict = arithmetic.evaluate(graph, cluster, request, plan)
    assert verdict.problems == []
    # "The end is 234386.67", and what the plan says of its stages.
    assert verdict.iteration_ns == pytest.approx(234386 + 2 / 3, rel=1e-12)
    for stage, listed in zip(verdict.stages, plan["stages"], strict=True):
        assert {key: getattr(stage, key) for key in FIELDS} == listed["predicted"]
    # Version 2: what the page says of the fullest moments.
    kinds = ["gradient_bytes", "activation_bytes", "buffer_bytes", "workspace_bytes", "peak_bytes"]
    expected = [[12000, 3200, 2000, 0, 53200], [8000, 4000, 4000, 0, 40000]]
    core = core_verdict(second, cluster, request, plan)
    for verdict in arithmetic.evaluate(second, cluster, request, plan), core:
        assert [[getattr(stage, kind) for kind in kinds] for stage in verdict.stages] == expected
    # Version 3: one stage, of which two nodes are a segment each.
    nodes = ["emb", "mlp", "head"]
    one = {"nodes": nodes, "ranks": [0], "recompute": [["emb"], ["mlp"]]}
    plan |= {"version": 3, "micro_batches": 1, "stages": [one]}
    request |= {"global_batch": 4}
    core = core_verdict(graph, cluster, request, plan)
    for verdict in arithmetic.evaluate(graph, cluster, request, plan), core:
        [stage] = verdict.stages
        assert (stage.activation_bytes, stage.backward_ns) == (13600, 4100)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_both_evaluators_agree_on_random_plans(first, version):
    for seed in range(first, first + 100):
        dice, graph, cluster, request, plan = random_case(seed, version)
        peak = max(s.peak_bytes for s in arithmetic.evaluate(graph, cluster, request, plan).stages)
        # Some do not fit.
        cluster["device_memory_bytes"] = max(1.0, peak * dice.uniform(0.9, 1.5))
        mine = arithmetic.evaluate(graph, cluster, request, plan)
        core = core_verdict(graph, cluster, request, plan)
        assert bool(mine.problems) == bool(core.problems), (seed, mine.problems, core.problems)
        assert core.iteration_ns == pytest.approx(mine.iteration_ns, rel=1e-9), seed
        assert core.iteration_price == pytest.approx(mine.iteration_price, rel=1e-9), seed
        for ours, theirs in zip(mine.stages, core.stages, strict=True):
            for key in FIELDS:
                expected = pytest.approx(getattr(ours, key), rel=1e-9, abs=1e-6)
                assert getattr(theirs, key) == expected, (seed, key)


def test_both_evaluators_agree_on_a_rank_that_holds_nothing():
    """What arrives for its only forward is in no account of version 2."""
    costs = {"forward_ns": [1], "backward_ns": [1], "params": []}
    graph = {
        "format": "rannc-graph-profile", "version": 2, "name": "", "rows": [1],
        "inputs": [{"name": "x"}], "params": [],
        "nodes": [
            {"name": "a", "op": "op", "inputs": ["x"],
             "outputs": [{"bytes_per_row": 10, "grad": False}], **costs},
            {"name": "b", "op": "op", "inputs": ["a"], "outputs": [], **costs},
        ],
    }  # fmt: skip
    cluster = random_cluster(random.Random(0)) | {"hosts": 1, "devices_per_host": 2}
    request = {"format": "rannc-plan-request", "version": 1, "global_batch": 1}
    stages = [
        {"nodes": [name], "ranks": [rank], "recompute": False} for rank, name in enumerate("ab")
    ]
    plan = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 1,
        "interleave": 1, "stages": stages,
    }  # fmt: skip
    mine = arithmetic.evaluate(graph, cluster, request, plan)
    core = core_verdict(graph, cluster, request, plan)
    for verdict in (mine, core):
        assert (verdict.stages[1].peak_bytes, verdict.stages[1].buffer_bytes) == (0, 0)


def no_node(dice, plan):
    stage = dice.choice(plan["stages"])
    stage["nodes"] = stage["nodes"][1:]


def node_twice(dice, plan):
    dice.choice(plan["stages"])["nodes"].append(plan["stages"][0]["nodes"][0])


def rank_twice(dice, plan):
    stage = dice.choice(plan["stages"])
    stage["ranks"] = [*stage["ranks"], stage["ranks"][0]]


def rank_out_of_range(dice, plan):
    dice.choice(plan["stages"])["ranks"] = [99]


def stages_swapped(dice, plan):
    first, second = plan["stages"][0], plan["stages"][-1]
    first["nodes"], second["nodes"] = second["nodes"], first["nodes"]


def more_micro_batches(dice, plan):
    plan["micro_batches"] *= 2


def another_schedule(dice, plan):
    plan["schedule"] = {"interleaved": "1f1b", "1f1b": "gpipe", "gpipe": "interleaved"}[
        plan["schedule"]
    ]


def nodes_moved(dice, plan):
    first, second = dice.choice(plan["stages"]), dice.choice(plan["stages"])
    if len(first["nodes"]) > 1:
        second["nodes"] = [*second["nodes"], first["nodes"].pop()]


MISTAKES = [
    no_node,
    node_twice,
    rank_twice,
    rank_out_of_range,
    stages_swapped,
    more_micro_batches,
    another_schedule,
    nodes_moved,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_both_evaluators_see_the_same_plans_as_invalid(mistake):
    invalid = 0
    for seed in range(40):
        dice, graph, cluster, request, plan = random_case(seed)
        request["max_interleave"] = dice.choice([2, 4])
        request["recompute"] = dice.choice(["auto", "never", "always", "stage", "segments"])
        request["version"] = 3
        if dice.random() < 0.3:
            request["force"] = {"stages": dice.choice([1, 2, 3])}
        plan = copy.deepcopy(plan)
        for stage in plan["stages"]:  # what is wrong with segments is said when a plan is read
            stage["recompute"] = bool(stage["recompute"])
        mistake(dice, plan)
        mine = arithmetic.Judge(graph, cluster, request, plan).problems()
        core = core_verdict(graph, cluster, request, plan).problems
        assert bool(mine) == bool(core), (seed, mine, core)
        invalid += bool(core)
    assert invalid > 0
