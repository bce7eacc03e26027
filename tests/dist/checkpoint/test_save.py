"""Checkpoints between jobs of other numbers of ranks, and of a job that loses a rank in a save."""

import json
import random
import re
import subprocess
import sys
import time

import forked_ranks
import mpi
import pytest
import torchrun
from jobs import killed_saves

import pyrannc


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


def saving_ranks(folder):
    """Processes without a launcher, which would end the others: they have to notice themselves."""
    port = mpi.free_port()
    argv = [sys.executable, "-IS", forked_ranks.__file__, mpi._parent().address]
    return [
        subprocess.Popen(
            [*argv, str(mpi.JOBS / "killed_saves.py"), str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=open(f"{folder}-{rank}.err", "w"),
            env=torchrun.environment(killed_saves.RANKS)
            | {
                "RANK": str(rank),
                "WORLD_SIZE": str(killed_saves.RANKS),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(killed_saves.RANKS)
    ]


def told(folder, rank, what):
    """The numbers and times of the saves that a rank has begun, or ended."""
    path = folder.with_name(f"{folder.name}-{rank}")
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines]
    return [(int(number), float(at)) for word, number, at in words if word == what]


def kill_one(folder, victim):
    """A rank is killed at some moment in its saves; which of them was the last one that had ended
    on some rank, and whether one was under way."""
    for path in folder.parent.glob(f"{folder.name}-*"):
        path.unlink()
    ranks = saving_ranks(folder)
    try:
        deadline = time.monotonic() + 120
        while not (ended := told(folder, victim, "end")):
            assert time.monotonic() < deadline and all(each.poll() is None for each in ranks), [
                path.read_text()[-2000:] for path in folder.parent.glob("*.err")
            ]
            time.sleep(0.001)
        one_save = ended[0][1] - told(folder, victim, "begin")[0][1]
        time.sleep(random.uniform(0, 3 * one_save))
        ranks[victim].kill()
        codes = [each.wait(60) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    texts = {
        rank: folder.with_name(f"{folder.name}-{rank}.err").read_text()
        for rank in {*range(killed_saves.RANKS)} - {victim}
    }
    for rank, text in texts.items():
        named = re.search(r"CommError: (.*: )?rank \d", text)
        assert codes[rank] > 0 and named, (rank, codes, text[-3000:])
    # A rank that got no processor for a while sees the end of both others at once.
    assert any(f"rank {victim} has ended" in text for text in texts.values()), (victim, texts)
    numbers = [told(folder, rank, "end")[-1:] for rank in range(killed_saves.RANKS)]
    begun, ended = (told(folder, victim, what)[-1][0] for what in ("begin", "end"))
    return max(number for ((number, _),) in numbers), begun > ended


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.all)])
def test_a_rank_that_is_killed_in_a_save_is_named_and_the_last_checkpoint_loads(tmp_path, kills):
    random.seed(kills)
    folder, inside = tmp_path / "run", 0
    for trial in range(kills):
        ended, in_save = kill_one(folder, trial % killed_saves.RANKS)
        inside += in_save
        model, optimizer = killed_saves.build()
        found = pyrannc.load(folder, model, optimizer)
        assert ended <= found <= ended + 1, (found, ended)
        killed_saves.check(found, model.parameters(), optimizer)
    assert inside > kills / 10, inside  # or the moments say nothing of saves


def test_under_mpirun_a_rank_that_dies_while_it_writes_ends_the_job(tmp_path):
    program = f"""
    import os, signal, sys
    from pathlib import Path
    sys.path.append({str(mpi.JOBS)!r})
    import killed_saves, pyrannc, torch
    from pyrannc.stored import parts

    folder = Path({str(tmp_path)!r})
    plain, optimizer = killed_saves.build()
    model = pyrannc.RaNNCModule(plain, optimizer, killed_saves.config())
    model(torch.ones(killed_saves.RANKS, 60)).sum().backward()
    mine = [*model.parameters(from_global=False)]
    killed_saves.put(1, mine, optimizer)
    pyrannc.save(folder, model, optimizer, extra=1)
    theirs = parts.save_file

    def die(tensors, path, metadata):
        theirs(tensors, path, metadata)
        os.kill(os.getpid(), signal.SIGKILL)

    if pyrannc.get_rank() == 1:
        parts.save_file = die
    killed_saves.put(2, mine, optimizer)
    pyrannc.save(folder, model, optimizer, extra=2)
    """
    job = mpi.run(program, killed_saves.RANKS)
    assert job.returncode not in (0, None)
    assert "rank 1" in job.stderr and "signal 9" in job.stderr, job.stderr[-2000:]
    model, optimizer = killed_saves.build()
    assert pyrannc.load(tmp_path, model, optimizer) == 1
    killed_saves.check(1, model.parameters(), optimizer)
