"""Ranks that go through sets of strings in other orders train as one process does."""

import json
import os
import subprocess
import sys

import mpi
import pytest

SCRIPT = mpi.JOBS / "set_order.py"
SETS = [
    [f"branch{number}" for number in range(6)],
    ["x", "y", "z"],
    ["sliding_attention", "full_attention"],
]


def orders(seed):
    """In which Python with this seed of its hashes goes through the sets of set_order.py."""
    code = f"import json; print(json.dumps([list(set(names)) for names in {SETS!r}]))"
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return json.loads(done.stdout)


def two_seeds():
    """With which the order of every set differs."""
    first = orders(1)
    for seed in range(2, 100):
        if all(a != b for a, b in zip(first, orders(seed), strict=True)):
            return f"1,{seed}"
    raise AssertionError("no such seed")


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.all)])
def test_ranks_with_other_orders_of_sets_train_as_one_process(ranks):
    done = mpi.run([str(SCRIPT)], ranks, timeout=400, env={"SEEDS": two_seeds()})
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank} is done" in done.stdout for rank in range(ranks)), done.stdout
