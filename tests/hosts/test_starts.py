"""Two hosts of two ranks train as one host does, whatever starts them."""

import json
import sys

import hosts
import mpi
import on_hosts
import pytest

STEPS = 4
JOB = str(mpi.JOBS / "resume.py")
TORCHRUN = "from torch.distributed.run import main; main()"


def started(two, command, spaces=hosts.SPACES):
    """Runs a job that a command on h1 starts."""
    command = list(map(str, command))
    done = two.run("h1", command, on_hosts.VARIABLES, spaces=spaces)
    assert done.returncode == 0, done.stdout + done.stderr


def mpirun(*options):
    handed = [part for name in ("PYTHONPATH", *on_hosts.VARIABLES) for part in ("-x", name)]
    usual = ["-n", "4", "--host", "h1:2,h2:2", "--oversubscribe", "--bind-to", "none"]
    return ["mpirun", *usual, *handed, *options, sys.executable]


def by_mpirun(two, script):
    started(two, [*mpirun(), *on_hosts.rank(*script)])


def by_an_rsh_agent(two, script):
    # The agent needs the numbers that processes have outside of the hosts.
    agent = f"{sys.executable} {hosts.__file__} --state {two.state} rsh"
    started(two, [*mpirun("--mca", "plm_rsh_agent", agent), *script], ("--net", "--uts"))


def by_rannc_run(two, script):
    command = ["-c", "from pyrannc.cli import main; main()", "run", "-n", "4"]
    handed = ["--hosts", "h1:2,h2:2", "--env", "PYTHONPATH"]
    started(two, [sys.executable, *command, *handed, *on_hosts.rank(*script)])


def by_torchrun(two, script, *meeting):
    """One torchrun on each host."""
    command = [sys.executable, *on_hosts.rank("-c", TORCHRUN), "--nnodes=2", "--nproc-per-node=2"]
    agents = []
    for number, name in enumerate(two.names):
        place = [part.format(number) for part in meeting]
        whole = [*command, *place, *on_hosts.rank(*script)]
        agents.append(two.start(name, whole, on_hosts.VARIABLES))
    assert [agent.wait(240) for agent in agents] == [0, 0]


def by_torchrun_with_an_address(two, script):
    by_torchrun(two, script, "--node-rank={}", "--master-addr=h1", "--master-port=4711")


def by_torchrun_that_meets(two, script):
    by_torchrun(two, script, "--rdzv-backend=c10d", "--rdzv-endpoint=h1:4712", "--rdzv-id=7")


STARTS = [
    by_rannc_run,
    by_torchrun_with_an_address,
    *(pytest.param(start, marks=pytest.mark.hosts)
      for start in (by_mpirun, by_an_rsh_agent, by_torchrun_that_meets)),
]  # fmt: skip


@pytest.fixture(scope="module")
def expected(folder):
    """The losses of four ranks of one host."""
    saved = folder / "one_host"
    done = mpi.run([JOB, str(saved), "0", str(STEPS)], 4)
    assert done.returncode == 0, done.stderr
    return losses(saved, 0)


def losses(saved, first):
    return json.loads((saved / f"losses-{first}.json").read_text())


@pytest.mark.parametrize("start", STARTS)
def test_two_hosts_train_as_one(two, folder, expected, start):
    saved = folder / start.__name__
    start(two, [JOB, saved, 0, STEPS])
    assert losses(saved, 0) == pytest.approx(expected, rel=1e-6)


def test_a_run_of_two_hosts_goes_on_on_one(two, folder, expected):
    one, saved = folder / "one_host", folder / by_rannc_run.__name__
    for each in (one, saved):
        done = mpi.run([JOB, str(each), str(STEPS), str(STEPS + 2)], 4)
        assert done.returncode == 0, done.stderr
    assert losses(saved, STEPS) == pytest.approx(losses(one, STEPS), rel=1e-6)
