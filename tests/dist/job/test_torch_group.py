"""Jobs that torch.distributed has brought together: torchrun, mp.spawn, srun's variables."""

import json
import subprocess
import sys

import mpi
import pytest
import torchrun


def test_collectives_without_mpi(tmp_path):
    result = torchrun.run([str(mpi.JOBS / "collectives.py")], 4, tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    reports = json.loads(result.stdout)
    wrong = [(rank, name) for rank, r in enumerate(reports) for name, ok in r.items() if not ok]
    assert len(reports) == 4 and len(reports[0]) > 25
    assert not wrong


def test_a_run_under_torchrun_goes_on_under_mpirun_with_the_same_losses(tmp_path):
    """Replicas, stages and deterministic dropout; the checkpoint passes from one to the other."""
    job = str(mpi.JOBS / "resume.py")

    def losses(folder, first):
        return json.loads((folder / f"losses-{first}.json").read_text())

    for folder, first, last, run in (
        ("whole", 0, 4, lambda *args: mpi.run([job, *args], 1)),
        ("parts", 0, 2, lambda *args: torchrun.run([job, *args], 3, tmp_path)),
        ("parts", 2, 4, lambda *args: mpi.run([job, *args], 2)),
    ):
        done = run(str(tmp_path / folder), str(first), str(last))
        assert done.returncode == 0, done.stderr[-3000:]
    found = losses(tmp_path / "parts", 0) + losses(tmp_path / "parts", 2)
    assert found == pytest.approx(losses(tmp_path / "whole", 0), rel=1e-5)


def test_an_exception_and_a_killed_rank_end_the_job_and_are_named(tmp_path):
    for what, told in (
        ("raise ValueError('the data has a hole')", "rank 1 ends the job: ValueError: the data"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 has ended: its connection is closed"),
    ):
        result = torchrun.run(
            f"""
            import os, signal
            from pyrannc import launch
            world = launch.world()
            world.barrier()
            if world.rank == 1:
                {what}
            world.receive(4, 1, 7)
            """,
            2,
            tmp_path,
        )
        assert result.returncode != 0
        assert told in result.stderr, result.stderr[-3000:]


def test_a_rank_that_is_silent_is_named_at_the_deadline(tmp_path):
    result = torchrun.run(
        """
        import time
        from pyrannc import launch
        world = launch.world()
        world.barrier()
        world.timeout_s = 2
        if world.rank == 1:
            time.sleep(100)
        world.receive(4, 1, 7)
        """,
        2,
        tmp_path,
    )
    assert result.returncode != 0
    expected = (
        "rank 0 waited 2 s for the message of the script from rank 1; rank 1 waits for nobody"
    )
    assert expected in result.stderr, result.stderr[-3000:]


MEET = """
import sys, torch
import torch.distributed as dist
import pyrannc

def meet():
    pyrannc.init()
    world = pyrannc.launch.world()
    sampler = torch.utils.data.DistributedSampler(range(6), shuffle=False)
    rows = [item.decode() for item in world.all_gather(str(list(sampler)).encode())]
    assert rows == ["[0, 2, 4]", "[1, 3, 5]"], rows
    assert (pyrannc.get_rank(), pyrannc.get_world_size()) == (dist.get_rank(), 2)
    print("met", flush=True)
"""


def test_a_group_of_the_script_is_the_job_also_in_processes_of_mp_spawn(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        MEET
        + """
def work(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    meet()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
"""
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True, text=True, timeout=200, env=torchrun.environment(2),
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("met") == 2, done.stderr[-3000:]


def test_variables_of_a_step_of_slurm_are_enough():
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(mpi.free_port()), "SLURM_STEP_ID": "0"}
    ranks = [step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    for out, err, code in torchrun.run_with_variables(MEET + "meet()", ranks):
        assert code == 0 and out.count("met") == 1, err[-3000:]


def test_init_under_mpirun_makes_a_group_for_distributed_samplers():
    done = mpi.run(MEET + "meet()", 2)
    assert done.returncode == 0 and done.stdout.count("met") == 2, done.stderr[-3000:]
