"""1F1B keeps the activations of as many micro-batches as stages follow, fill-drain all of them."""

import json
from pathlib import Path

import mpi

SCRIPT = Path(__file__).with_name("schedule_memory.py")


def test_1f1b_keeps_fewer_activations_than_fill_drain():
    done = mpi.run([str(SCRIPT)], 4, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    # Each stage has 16 MiB for each live micro-batch, of which there are 8 against 4, 3, 2 and 1,
    # and some for what is computed and sent just now.
    ratios = [all_of / few for all_of, few in zip(found["gpipe"], found["1f1b"], strict=True)]
    assert ratios == sorted(ratios) and ratios[0] >= 1.9, found
    assert sum(found["gpipe"]) >= 2.8 * sum(found["1f1b"]), found
