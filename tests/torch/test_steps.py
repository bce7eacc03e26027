"""Predictions against measured steps: the text, and which differences are worth a warning."""

import json

import pytest

from pyrannc import _C, steps

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
    text, worst = steps.compare(plan(30, 50), 40, [40 * MIB])
    assert text == (
        "step: predicted 30.0 ms, measured 40.0 ms\n"
        "stage 0 (ranks 0): memory predicted 50.0 MiB, measured 40.0 MiB"
    )
    assert worst == pytest.approx(0.25)


def test_differences_below_a_millisecond_or_a_mebibyte_do_not_matter():
    assert steps.compare(plan(0.5, 1.5), 1, [MIB])[1] == 0
    assert steps.compare(plan(0.5, 1.5), 2, [MIB])[1] == 0.75
