"""Records of runs beside a plan."""

import json

import pytest

from pyrannc.planner import PlannerInputError
from pyrannc.show import record

PLAN = {
    "format": "rannc-plan", "version": 1, "micro_batches": 1, "schedule": "gpipe",
    "stages": [{"nodes": ["a"], "ranks": [0]}], "notes": {"fingerprint": "abc"},
}  # fmt: skip
RECORD = {
    "format": "rannc-run", "version": 1, "fingerprint": "abc", "step_ns": 5000,
    "stages": [{"peak_bytes": 100}],
}  # fmt: skip


@pytest.fixture
def check(tmp_path):
    def checked(text):
        (tmp_path / "plan.json").write_text(json.dumps(PLAN))
        (tmp_path / "run.json").write_text(text)
        return json.loads(record.checked(tmp_path / "run.json", tmp_path / "plan.json"))

    return checked


def test_the_last_of_many_records_counts_and_one_may_have_many_lines(check):
    assert check(json.dumps(RECORD, indent=1)) == RECORD
    lines = [json.dumps(RECORD | {"step_ns": ns}) for ns in (1, 2, 3)]
    assert check("\n".join(lines) + "\n\n")["step_ns"] == 3


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "is empty"),
        ("{", "is no record of a run"),
        (json.dumps(PLAN), "is no record of a run"),
        (json.dumps(RECORD | {"version": 2}), "of version 2; this RaNNC reads 1"),
        (json.dumps(RECORD | {"fingerprint": "x"}), "fingerprint is x, the plan's abc"),
        (json.dumps(RECORD | {"step_ns": "1"}), "step_ns: expected"),
        (json.dumps(RECORD | {"stages": [{}]}), r"\$\.stages\[0\]\.peak_bytes: expected a number"),
        (json.dumps(RECORD | {"ranks": {}}), r"\$\.ranks: expected a list"),
        (json.dumps(RECORD | {"ranks": [{"idle": "<b>"}]}), r"\$\.ranks\[0\]\.idle: expected"),
        (json.dumps(RECORD | {"stages": []}), "0 stages, but .*plan.json has 1"),
        (
            json.dumps(RECORD | {"stages": [{"peak_bytes": 100, "ranks": [0, 1]}]}),
            "another plan than .*plan.json: stage 0 ran on ranks 0, 1, the plan has it on rank 0",
        ),
    ],
)
def test_a_record_that_does_not_go_with_the_plan_says_what_differs(check, text, complaint):
    with pytest.raises(PlannerInputError, match=rf"run\.json: .*{complaint}"):
        check(text)


def test_a_record_of_steps_that_nobody_has_measured_yet_says_so(check):
    early = {key: value for key, value in RECORD.items() if key not in ("step_ns", "stages")}
    with pytest.raises(PlannerInputError, match=r"nothing measured yet: .* after 4 steps"):
        check(json.dumps(early | {"steps": 4}))
