"""Where a plan needs more than NCCL's connections have left, and stays."""

from types import SimpleNamespace

import pytest

from pyrannc import _C
from pyrannc.planning import planner_inputs, room

MIB = 1 << 20


@pytest.mark.parametrize("needed", [60, 70])
def test_a_plan_that_does_not_fit_all_the_same_is_warned_of(needed, monkeypatch, capfd):
    monkeypatch.setattr(planner_inputs, "memory_bytes", lambda task, ranks_on_host: 60 * MIB)
    task = SimpleNamespace(world=_C.comm.make_local(1)[0])
    agreed = SimpleNamespace(memory_bytes=100 * MIB, hosts=["a"])
    plan = SimpleNamespace(step=SimpleNamespace(peak_bytes=[50 * MIB, needed * MIB]))
    room.warn_of_little(task, agreed, plan)
    printed = capfd.readouterr().err
    assert ("connections have left 60.0 MiB" in printed) == (needed > 60)
    assert ("a step of the plan needs 70.0 MiB" in printed) == (needed > 60)
