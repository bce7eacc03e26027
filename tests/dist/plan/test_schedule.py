"""1F1B keeps the activations of as many micro-batches as stages follow, fill-drain all of them."""

import json

import mpi

SCRIPT = mpi.JOBS / "schedule_memory.py"


def test_1f1b_keeps_fewer_activations_than_fill_drain():
    done = mpi.run([str(SCRIPT)], 4, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    # A stage has 16 MiB for each live micro-batch, of which there are 8 against 4, 3, 2 and 1; at
    # most its input and its output, 1 MiB each, depending on which rank has the message just now;
    # and up to 6 MiB for what is computed.
    (least, most), (least_1f1b, most_1f1b) = found["gpipe"], found["1f1b"]
    assert min(most) > 8 * 16, found
    for live, low, high in zip((4, 3, 2, 1), least_1f1b, most_1f1b, strict=True):
        assert live * 16 < high and low <= live * (16 + 2) + 6, found
    # Together 32 live micro-batches against 10, each with what is computed and sent just now: the
    # bounds above leave a factor of 2.5.
    assert sum(least) >= 2.5 * sum(least_1f1b), found
