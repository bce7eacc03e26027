"""Two plans beside each other, as text."""

import json

import pytest

from pyrannc.planner import PlannerInputError
from pyrannc.show import diff


def plan(replicas, **others):
    ranks = iter(range(100))
    stages = [
        {"nodes": [f"n{s}"], "ranks": [next(ranks) for _ in range(count)],
         "notes": {"modules": f"layers.{s}"}}
        for s, count in enumerate(replicas)
    ]  # fmt: skip
    return {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 2,
        "iteration_ns": 2_000_000, "stages": stages, **others,
    }  # fmt: skip


def test_what_differs_is_marked_and_lines_fit_the_terminal(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(plan([1, 2])))
    b.write_text(json.dumps(plan([3], schedule="1f1b", iteration_ns=1_500_000)))
    lines = diff.text(a, b).splitlines()
    assert max(map(len, lines)) <= 80
    marked = {line[2:].split("  ")[0] for line in lines if line.startswith("*")}
    assert marked == {"plan", "model", "iteration", "schedule", "stages", "stage 0", "stage 1"}
    (iteration,) = [line for line in lines if line.startswith("* iteration")]
    assert iteration.split()[2:] == ["2.000", "ms", "1.500", "ms"]


def test_stages_that_recompute_or_lie_elsewhere_are_marked(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    first, second = plan([1, 1]), plan([1, 1])
    first["stages"][0]["recompute"] = second["stages"][1]["recompute"] = True
    a.write_text(json.dumps(first))
    b.write_text(json.dumps(second))
    facts = {name: found for name, *found in diff.facts(a, b)}
    assert facts["recompute"] == ["1 stages", "1 stages"]
    assert facts["stage 0"] == ["1 x layers.0, recomputed", "1 x layers.0"]
    third = plan([1, 1])
    third["stages"][1]["ranks"] = [7]
    a.write_text(json.dumps(plan([1, 1])))
    b.write_text(json.dumps(third))
    facts = {name: found for name, *found in diff.facts(a, b)}
    assert facts["stage 0"] == ["1 x layers.0"] * 2
    assert facts["stage 1"] == ["1 x layers.1 on ranks 1", "1 x layers.1 on ranks 7"]


def test_small_plans_have_small_units(tmp_path):
    a = tmp_path / "a.json"
    small = plan([1], iteration_ns=31_000)
    small["notes"] = {"step_peak_bytes": [54_400]}
    a.write_text(json.dumps(small))
    facts = {name: found for name, *found in diff.facts(a, a)}
    assert (facts["iteration"][0], facts["fullest rank"][0]) == ("31.000 us", "53.12 KiB")


def test_plans_of_other_models_say_how_many_operators_the_other_does_not_have(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(plan([1, 1, 1])))
    b.write_text(json.dumps(plan([1, 1])))
    facts = {name: found for name, *found in diff.facts(a, b)}
    assert facts["model"] == ["3 operators, 1 only here", "2 operators"]
    facts = {name: found for name, *found in diff.facts(a, a)}
    assert facts["model"] == ["3 operators", "3 operators"]


def test_of_a_plan_that_does_not_fit_the_whole_reason_stands_there(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    reason = "no plan fits: node 'big' needs 3.0 GiB at 2 rows, but a device offers 1.0 GiB"
    a.write_text(json.dumps(plan([1])))
    nothing = {"format": "rannc-plan", "version": 1, "feasible": False, "reason": reason}
    b.write_text(json.dumps(nothing))
    text = diff.text(a, b)
    assert f"{a}: a plan that fits" in " ".join(text.split())
    assert reason in " ".join(text.split())


def test_a_file_that_is_no_plan_is_named(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(plan([1])))
    b.write_text("{}")
    with pytest.raises(PlannerInputError, match=r"^\S*b\.json: "):
        diff.text(a, b)


def test_groups_of_ranks_are_named_with_what_their_collectives_send_and_take(tmp_path):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    grouped = plan([4], version=2)
    grouped["stages"][0] |= {"mesh": [1, 2], "factors": {"head.weight:0": "y"}}
    grouped["stages"][0]["notes"]["group"] = {
        "parameter_bytes": 100, "cut_bytes": 50, "collective_bytes": 2048,
        "collective_ns": 1_500_000, "whole": [], "more_whole": 0,
    }  # fmt: skip
    a.write_text(json.dumps(plan([4])))
    b.write_text(json.dumps(grouped))
    lines = {
        line[2:30].strip(): line[30:].split("  ") for line in diff.text(a, b, 120).splitlines()
    }
    assert [each.strip() for each in lines["collectives of a micro-batch"] if each.strip()] == [
        "none", "2.00 KiB, 1.500 ms",
    ]  # fmt: skip
    assert "2 x layers.0 on groups of 2" in "".join(lines["stage 0"])
