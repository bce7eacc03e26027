"""A plan as the last value of a notebook's cell."""

import json

from pyrannc import _C

PREDICTED = dict.fromkeys(
    ("rows", "forward_ns", "backward_ns", "reduce_ns", "param_bytes", "gradient_bytes",
     "optimizer_bytes", "activation_bytes", "buffer_bytes", "workspace_bytes", "peak_bytes"),
    2**20,
)  # fmt: skip


def plan(stages, **predicted):
    content = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 2,
        "iteration_ns": 5_000_000,
        "stages": [
            {"nodes": [f"n{s}"], "ranks": [s]} | predicted for s in range(stages)
        ],
    }  # fmt: skip
    return _C.plan.Plan.from_json(json.dumps(content))


def test_a_cell_shows_the_strip_and_a_row_for_each_stage():
    html = plan(3, predicted=PREDICTED)._repr_html_()
    assert html.count("<i title=") == 3 and "<script" not in html
    # 2 times 2**20 ns of a micro-batch, and 2**20 bytes.
    assert html.count("<td>1</td><td>2.1</td><td>1.0</td><td>no</td>") == 3


def test_of_many_stages_the_first_are_shown_and_a_plan_without_times_is_its_headline():
    html = plan(70, predicted=PREDICTED)._repr_html_()
    assert html.count("<tr><td>") == 64 and "and 6 more" in html
    html = plan(2)._repr_html_()
    assert "2 stages" in html and "<table" not in html


def test_a_plan_prints_itself():
    assert "2 stages" in str(plan(2)) and "object at" not in repr(plan(2))
