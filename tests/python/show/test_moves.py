"""What it costs to have a module on another stage."""

import json

import pytest
from typer.testing import CliRunner

from pyrannc import planner
from pyrannc.cli import app
from pyrannc.planner import PlannerInputError
from pyrannc.show import moves

CLUSTER = {
    "format": "rannc-cluster", "version": 1, "hosts": 1, "devices_per_host": 2,
    "device_memory_bytes": 1e9, "intra_host": {"bandwidth_bytes_per_s": 1e12, "latency_ns": 10},
}  # fmt: skip


@pytest.fixture
def costs(tmp_path):
    """Of a module of a chain a, b, c, d of equal operators, two on each of two stages."""
    names = ["a", "b", "c", "d"]
    graph = {
        "format": "rannc-graph-profile", "version": 1, "rows": [1], "params": [],
        "inputs": [{"name": "x", "bytes_per_row": 100}],
        "nodes": [
            {"name": name, "op": "gelu", "inputs": [before], "params": [],
             "outputs": [{"bytes_per_row": 100}], "forward_ns": [1e6], "backward_ns": [2e6],
             "saved_bytes": [100]}
            for before, name in zip(["x", *names], names, strict=False)
        ],
    }  # fmt: skip
    plan = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 1,
        "stages": [{"nodes": ["a", "b"], "ranks": [0]}, {"nodes": ["c", "d"], "ranks": [1]}],
        "notes": {"global_batch": 1},
    }  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(graph))
    (tmp_path / "p.json").write_text(json.dumps(plan))
    (tmp_path / "c.toml").write_text(planner._toml(CLUSTER))

    def of(module):
        return moves.costs(tmp_path / "p.json", module, tmp_path / "g.json", tmp_path / "c.toml")

    return of


def test_a_border_moves_over_all_that_lies_between_it_and_the_module(costs):
    now, to_next, recompute = costs("b")
    assert (now["what"], now["moved"], now["valid"]) == ("as it is", 0, True)
    assert (to_next["what"], to_next["moved"]) == ("on stage 1", 1)
    assert costs("a")[1]["moved"] == 2 and not costs("a")[1]["valid"]  # nothing is left
    before = costs("d")[1]
    assert (before["what"], before["moved"]) == ("on stage 0", 2)
    # One micro-batch: where the border lies makes no difference; a forward more does.
    assert to_next["iteration_ns"] == now["iteration_ns"]
    assert recompute["iteration_ns"] == now["iteration_ns"] + 2_000_000
    text = moves.text(costs("b"))
    assert max(map(len, text.splitlines())) <= 80 and "+2.00 ms" in text


def test_small_steps_and_small_memory_have_small_units():
    case = {"what": "as it is", "moved": 0, "valid": True, "problem": ""}
    cases = [case | {"iteration_ns": 31_000, "peak_bytes": 54_400},
             case | {"what": "on stage 1", "iteration_ns": 31_400, "peak_bytes": 900}]  # fmt: skip
    first, second = moves.text(cases).splitlines()[3:]
    assert first.split()[-4:] == ["31.0", "us", "53.12", "KiB"]
    assert second.split()[-6:] == ["31.4", "us", "+0.40", "us", "900", "B"]


def test_what_is_no_module_of_one_stage_is_said(costs):
    with pytest.raises(PlannerInputError, match="no module and no node 'e'"):
        costs("e")


def test_of_a_module_in_two_stages_it_is_explained_where_it_is(costs, tmp_path):
    plan = json.loads((tmp_path / "p.json").read_text())
    plan["stages"][0]["nodes"][-1:], plan["stages"][1]["nodes"][:1] = ["m.b"], ["m.c"]
    graph = json.loads((tmp_path / "g.json").read_text())
    text = json.dumps(graph).replace('"b"', '"m.b"').replace('"c"', '"m.c"')
    (tmp_path / "g.json").write_text(text)
    (tmp_path / "p.json").write_text(json.dumps(plan))
    files = ["--graph", str(tmp_path / "g.json"), "--cluster", str(tmp_path / "c.toml")]
    arguments = ["explain", str(tmp_path / "p.json"), "m", *files]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    assert "'m' is in 2 stages" in done.stdout and "stages 0, 1 hold parts of it" in done.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert found["costs"] == [] and "stages 0, 1" in found["why_no_costs"]


def test_what_cannot_be_is_told_whole(costs):
    """`a` is the first of its stage, of which nothing would be left."""
    text = moves.text(costs("a"))
    assert "no plan:\n  nothing would be left of the stage\n" in text


def test_a_graph_of_another_model_and_a_plan_that_does_not_fit_are_no_costs(costs, tmp_path):
    graph = json.loads((tmp_path / "g.json").read_text())
    (tmp_path / "g.json").write_text(json.dumps(graph | {"nodes": graph["nodes"][:3]}))
    with pytest.raises(PlannerInputError, match=r"p\.json is not a plan of .*'d', which the graph"):
        costs("b")
    nothing = {"feasible": False, "reason": "no plan fits: too small"}
    plan = {"format": "rannc-plan", "version": 1} | nothing
    (tmp_path / "p.json").write_text(json.dumps(plan))
    with pytest.raises(PlannerInputError, match=r"p\.json: no plan fits: too small"):
        costs("b")
