"""1F1B keeps the activations of as many micro-batches as stages follow, fill-drain all of them."""

import json
from pathlib import Path

import mpi

SCRIPT = Path(__file__).with_name("schedule_memory.py")


def test_1f1b_keeps_fewer_activations_than_fill_drain():
    done = mpi.run([str(SCRIPT)], 4, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    # A stage has 17 MiB for each live micro-batch, of which there are 8 against 4, 3, 2 and 1; and
    # messages of 1 MiB, of which it depends on the moment how many are under way.
    for live, few, all_of in zip((4, 3, 2, 1), found["1f1b"], found["gpipe"], strict=True):
        assert all_of >= 8 * 17 and few <= live / 8 * all_of + 6, found
    assert sum(found["gpipe"]) >= 2.8 * sum(found["1f1b"]), found
