"""What ranks did in a step, as a table."""

import types

from pyrannc.report import time_shares
from pyrannc.report.speed import AtSpeed


def shares(idle):
    rest = dict.fromkeys((*time_shares.KINDS, "rest"), 0.0)
    return rest | {"compute": 1 - idle, "idle": idle}


def test_ranks_are_a_table_of_eighty_columns():
    step = types.SimpleNamespace(ns=100, idle_ns=[10, 20], bubble_ns=[5, 20])
    plan = types.SimpleNamespace(step=step, stages=[])
    now = AtSpeed([1.0, 1.0], 200, [30, 40])
    lines = time_shares.show(plan, [shares(0.25), shares(1.0)], now).splitlines()
    assert [line.split() for line in lines[2:]] == [
        # Of what is idle, 5 and 20 of 100 would be left without messages.
        ["0", "75.0%", "0.0%", "0.0%", "0.0%", "25.0%", "0.0%", "10.0%", "15.0%", "20.0%"],
        ["1", "0.0%", "0.0%", "0.0%", "0.0%", "100.0%", "0.0%", "20.0%", "20.0%", "80.0%"],
    ]
    assert lines[1].split() == [
        "rank", *time_shares.KINDS, "rest", "planned", "speed", "hidden"
    ]  # fmt: skip
    assert max(map(len, lines)) <= 80


def test_what_was_not_foretold_is_left_out():
    step = types.SimpleNamespace(ns=None, idle_ns=[], bubble_ns=[])
    plan = types.SimpleNamespace(step=step, stages=[])
    last = time_shares.show(plan, [shares(0.5)], None).splitlines()[-1]
    assert last.split()[-3:] == ["-", "-", "50.0%"]
