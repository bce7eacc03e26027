"""Predictions against measured steps: the text, and which differences are worth a warning."""

import json
import types

import pytest

from pyrannc import _C
from pyrannc.report import training_steps
from pyrannc.report.speed import AtSpeed, Speed

MIB = 2**20


def plan(step_ms, peak_mib):
    content = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe",
        "micro_batches": 1, "iteration_ns": 1.0,
        "stages": [{"nodes": ["n0"], "ranks": [0], "recompute": False}],
        "notes": {"step_ns": int(step_ms * 1e6), "step_peak_bytes": [peak_mib * MIB]},
    }  # fmt: skip
    return _C.plan.Plan.from_json(json.dumps(content))


def test_a_step_and_its_memory_are_compared_with_the_prediction():
    text, worst = training_steps.compare(plan(30, 50), 40, [40 * MIB], None)
    assert text == (
        "step: predicted 30.0 ms, measured 40.0 ms\n"
        "stage 0 (ranks 0): memory predicted 50.0 MiB, measured 40.0 MiB"
    )
    assert worst == pytest.approx(0.25)


def test_a_host_that_has_become_slower_is_no_reason_for_another_plan():
    now = AtSpeed([1.3, 1.4], plan(39, 40).step.ns, plan(39, 40).step.idle_ns)
    text, worst = training_steps.compare(plan(30, 40), 40, [40 * MIB], now)
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(text.split()).startswith(
        "step: predicted 30.0 ms, 39.0 ms at the speed of these steps (ranks compute 1.30 to "
        "1.40 x as long as when planned), measured 40.0 ms stage 0 (ranks 0): "
    )
    assert worst == 0

    too_little = now._replace(ns=plan(32, 40).step.ns)
    assert training_steps.compare(plan(30, 40), 40, [40 * MIB], too_little)[1] == 0.2
    one_rank_alone = now._replace(factors=[1.0, 1.3])
    assert training_steps.compare(plan(30, 40), 40, [40 * MIB], one_rank_alone)[1] == 0.25
    assert training_steps.compare(plan(30, 60), 40, [40 * MIB], now)[1] == 0.5


def test_the_speed_of_steps_is_that_of_their_computing():
    def predict(factors):
        return types.SimpleNamespace(ns=sum(factors), idle_ns=factors)

    speed = Speed([2e9, 1e9, 0], predict)
    shares = [{"compute": 0.5}, {"compute": 1.0}, {"compute": 0.0}]
    # The third computes nothing, now or when the plan was measured.
    assert speed.during([4, 3, 4], shares) == ([1, 3, 1], 5, [1, 3, 1])


def test_differences_below_a_millisecond_or_a_mebibyte_do_not_matter():
    assert training_steps.compare(plan(0.5, 1.5), 1, [MIB], {})[1] == 0
    assert training_steps.compare(plan(0.5, 1.5), 2, [MIB], {})[1] == 0.75
