"""A training run that goes on with another number of ranks after each checkpoint."""

import json

import mpi
import pytest


def losses(folder, ranks, first, last, *more):
    result = mpi.run(
        [str(mpi.JOBS / "resume.py"), str(folder), str(first), str(last), *more], ranks, timeout=200
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((folder / f"losses-{first}.json").read_text())


def test_4_ranks_then_2_then_3_then_1_then_4_have_the_losses_of_the_uninterrupted_run(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = losses(whole, 1, 0, 10)
    found = []
    jobs = [(4, 0, 2, "zero"), (2, 2, 4), (3, 4, 6, "zero"), (1, 6, 8, "zero"), (4, 8, 10, "zero")]
    for job in jobs:
        found += losses(parts, *job)
    assert found == pytest.approx(expected, rel=1e-5)
    # Several ranks of the last job have written their parts, and nothing is left of others.
    names = {path.name for path in parts.iterdir() if path.suffix == ".safetensors"}
    assert len({name.split("-")[2] for name in names}) > 1
    assert len({name.split("-")[1] for name in names}) == 1
