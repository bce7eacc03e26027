"""A rank that has become slower since the plan was measured is seen."""

import mpi

SCRIPT = mpi.JOBS / "slow_rank.py"


def test_the_report_says_how_much_longer_ranks_compute_than_when_planned():
    done = mpi.run([str(SCRIPT)], 2, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    # The same on both ranks.
    lines = {*done.stdout.splitlines()}
    assert len(lines) == 1, done.stdout
    faster, slower = map(float, lines.pop().split())
    assert slower > 2 * faster, (faster, slower)
    # Once, by rank 0. What it is put down to is a matter of times: the test of the same name in
    # tests/torch.
    assert done.stderr.count("a prediction of the plan is off by") == 1, done.stderr
    assert done.stderr.count("at the speed of these steps (ranks compute") == 1, done.stderr
