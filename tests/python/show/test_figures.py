"""The figures of a plan as data."""

import json

import pytest

from pyrannc.planner import PlannerInputError
from pyrannc.show import figures

PREDICTED = dict.fromkeys(
    ("rows", "forward_ns", "backward_ns", "reduce_ns", "param_bytes", "gradient_bytes",
     "optimizer_bytes", "activation_bytes", "buffer_bytes", "workspace_bytes", "peak_bytes"),
    7,
)  # fmt: skip
PLAN = {
    "format": "rannc-plan", "version": 1, "micro_batches": 2, "schedule": "1f1b",
    "iteration_ns": 4_000_000,
    "stages": [
        {"nodes": ["a.up", "a.down"], "ranks": [0, 1], "predicted": PREDICTED, "recompute": True},
        {"nodes": ["a.norm", "b"], "ranks": [2], "predicted": PREDICTED},
    ],
    "notes": {"global_batch": 8, "step_ns": 5_000_000, "step_peak_bytes": [30, 40]},
}  # fmt: skip


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    return path


def test_figures_are_those_of_the_plan_and_of_a_step_with_its_optimizer(plan):
    found = figures.of_plan(plan)
    assert (found["iteration_ns"], found["step_ns"], found["ranks"]) == (4_000_000, 5_000_000, 3)
    assert found["rows_per_s"] == pytest.approx(1600)
    assert [stage["predicted"]["peak_bytes"] for stage in found["stages"]] == [30, 40]
    assert [stage["recompute"] for stage in found["stages"]] == [True, False]
    assert found["gap"] is None and "measured" not in found


def test_a_record_and_what_does_not_fit_have_figures_too(plan, tmp_path):
    record = {"format": "rannc-run", "version": 1, "step_ns": 5, "stages": [{"peak_bytes": 1}] * 2}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert figures.of_plan(plan, record=tmp_path / "run.json")["measured"] == record
    nothing = {"format": "rannc-plan", "version": 1, "feasible": False, "reason": "too small"}
    plan.write_text(json.dumps(nothing))
    assert figures.of_plan(plan) == {"feasible": False, "reason": "too small"}
    with pytest.raises(PlannerInputError, match="too small"):
        figures.of_module(plan, "a")


def test_a_module_is_in_every_stage_that_holds_some_of_it(plan):
    found = figures.of_module(plan, "a")["stages"]
    assert [(each["stage"], each["operators_of_it"], each["ranks"]) for each in found] == [
        (0, 2, [0, 1]), (1, 1, [2]),
    ]  # fmt: skip
    assert [each["stage"] for each in figures.of_module(plan, "b")["stages"]] == [1]
    with pytest.raises(PlannerInputError, match="no module and no node 'c'"):
        figures.of_module(plan, "c")
