"""What the process of a rank takes, predicted before the first step."""

import json

import pytest
from pipeline import run_ranks

from pyrannc import _C
from pyrannc.report import resident_memory

MIB = 2**20


def two_stages():
    content = {
        "format": "rannc-plan",
        "version": 1,
        "schedule": "gpipe",
        "micro_batches": 1,
        "iteration_ns": 1,
        "stages": [
            {"nodes": ["n0"], "ranks": [0, 1], "recompute": False},
            {"nodes": ["n1"], "ranks": [2], "recompute": False},
        ],
        "notes": {"step_peak_bytes": [50 * MIB, 20 * MIB]},
    }
    return _C.plan.Plan.from_json(json.dumps(content))


def test_it_is_what_there_was_before_and_what_a_step_holds():
    def predict(world):
        before = [200 * MIB, 210 * MIB, 150 * MIB][world.rank]
        held = resident_memory.resident_bytes() - before
        return resident_memory.predict(two_stages(), held, world)

    found = run_ranks(3, predict)
    assert found[0] == found[1] == found[2]
    # The process has grown by what happened between two looks at it.
    assert found[0] == pytest.approx([260 * MIB, 170 * MIB], abs=8 * MIB)
    assert resident_memory.compare(
        dict(enumerate(found[0])), {0: 261 * MIB, 1: 171 * MIB}
    ).startswith("process with all that is in it: predicted stage 0 26")
    text = resident_memory.compare(
        dict(enumerate([100 * MIB, 90 * MIB] * 2)), dict(enumerate([101 * MIB, 91 * MIB] * 2))
    )
    assert text.endswith(  # two ranks with two stages each
        "stages 0, 2 100 MiB, measured 101 MiB; stages 1, 3 90 MiB, measured 91 MiB"
    )


def test_a_rank_keeps_as_much_as_its_fullest_stage_needs():
    assert resident_memory.most_of_rank(two_stages(), 1) == 50 * MIB
    assert resident_memory.most_of_rank(two_stages(), 2) == 20 * MIB
    assert resident_memory.most_of_rank(two_stages(), 3) == -1


def test_what_a_step_holds_on_an_accelerator_is_not_in_the_process():
    def predict(world):
        now = resident_memory.resident_bytes()
        return now, resident_memory.predict(two_stages(), 9**12, world, on_host=False)

    for now, found in run_ranks(3, predict):
        assert found == pytest.approx([now] * 2, abs=8 * MIB)
