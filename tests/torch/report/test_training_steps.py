"""Predictions against measured steps: the text, and which differences are worth a warning."""

import json
import types

import pytest
from pipeline import run_ranks

from pyrannc import _C
from pyrannc.report import resident_memory, training_steps
from pyrannc.report.speed import AtSpeed, Speed

MIB = 2**20
OF_THE_PLAN = "so another plan may be better or fit better"


def plan(step_ms, peak_mib):
    content = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe",
        "micro_batches": 1, "iteration_ns": 1.0,
        "stages": [{"nodes": ["n0"], "ranks": [0], "recompute": False}],
        "notes": {"step_ns": int(step_ms * 1e6), "step_peak_bytes": [peak_mib * MIB]},
    }  # fmt: skip
    return _C.plan.Plan.from_json(json.dumps(content))


def test_a_step_and_its_memory_are_compared_with_the_prediction():
    text, worst, follows = training_steps.compare(plan(30, 50), 40, [40 * MIB], [300 * MIB], None)
    assert text == (
        "step: predicted 30.0 ms, measured 40.0 ms\n"
        "stage 0 (ranks 0): memory predicted 50.0 MiB, measured 40.0 MiB; "
        "process predicted nothing, measured 300.0 MiB"
    )
    assert worst == pytest.approx(0.25)
    assert follows == OF_THE_PLAN


def test_memory_of_the_process_is_what_there_was_before_and_what_a_step_holds():
    # Two stages on one rank are in one process, beside what the other rank has.
    content = json.loads(plan(30, 50).to_json())
    content["stages"] = [
        {"nodes": ["n0"], "ranks": [0, 1], "recompute": False},
        {"nodes": ["n1"], "ranks": [2], "recompute": False},
    ]
    content["notes"]["step_peak_bytes"] = [50 * MIB, 20 * MIB]
    of_two_stages = _C.plan.Plan.from_json(json.dumps(content))

    def predict(world):
        before = [200 * MIB, 210 * MIB, 150 * MIB][world.rank]
        return resident_memory.predict(
            of_two_stages, resident_memory.resident_bytes() - before, world
        )

    plans = run_ranks(3, predict)
    found = [resident_memory.predicted(each) for each in plans]
    assert found[0] == found[1] == found[2]
    # The process has grown by what happened between two looks at it.
    assert found[0] == pytest.approx([260 * MIB, 170 * MIB], abs=8 * MIB)
    text, worst, _ = training_steps.compare(
        plans[0], 30, [50 * MIB, 20 * MIB], [300 * MIB, 171 * MIB], None
    )
    assert "process predicted 26" in text.splitlines()[1]
    assert text.splitlines()[1].endswith("MiB, measured 300.0 MiB")
    assert worst == 0  # what else there is in the process makes no other plan better


def test_a_host_that_has_become_slower_is_no_reason_for_another_plan():
    now = AtSpeed([1.0, 1.3], plan(39, 40).step.ns, plan(39, 40).step.idle_ns)
    text, worst, follows = training_steps.compare(plan(30, 40), 40, [40 * MIB], [0], now)
    assert text.splitlines()[0] == (
        "step: predicted 30.0 ms, 39.0 ms at the speed of these steps (ranks compute 1.00 to "
        "1.30 x as long as when planned), measured 40.0 ms"
    )
    assert worst == pytest.approx(0.25)
    assert follows == "because the host is faster or slower than when the plan was measured"

    too_little = now._replace(ns=plan(33, 40).step.ns)
    assert training_steps.compare(plan(30, 40), 40, [40 * MIB], [0], too_little)[2] == OF_THE_PLAN
    memory_is_off = training_steps.compare(plan(30, 60), 40, [40 * MIB], [0], now)
    assert memory_is_off[1:] == (0.5, OF_THE_PLAN)


def test_the_speed_of_steps_is_that_of_their_computing():
    def predict(factors):
        return types.SimpleNamespace(ns=sum(factors), idle_ns=factors)

    speed = Speed([2e9, 1e9, 0], predict)
    shares = [{"compute": 0.5}, {"compute": 1.0}, {"compute": 0.0}]
    # The third computes nothing, now or when the plan was measured.
    assert speed.during([4, 3, 4], shares) == ([1, 3, 1], 5, [1, 3, 1])


def test_differences_below_a_millisecond_or_a_mebibyte_do_not_matter():
    assert training_steps.compare(plan(0.5, 1.5), 1, [MIB], [0], {})[1] == 0
    assert training_steps.compare(plan(0.5, 1.5), 2, [MIB], [0], {})[1] == 0.75
