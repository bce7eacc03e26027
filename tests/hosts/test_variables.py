"""``rannc run --hosts`` hands on what every rank has to have."""

import json
import sys

import pytest

pytestmark = pytest.mark.hosts

RANNC = [sys.executable, "-c", "from pyrannc.cli import main; main()", "run"]
SHOW = """
import json, os, sys
names = ["RANK", "RANNC_SCHEDULE", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "OMP_NUM_THREADS",
         "MINE", "NOT_MINE"]
sys.stdout.write(json.dumps([os.uname().nodename, *map(os.environ.get, names)]) + "\\n")
"""


# Ranks of h2 had no RANNC_*, no PYTHONHASHSEED and no OMP_NUM_THREADS: the job ended with "the
# ranks have different settings", or went on with others.
def test_ranks_of_all_hosts_have_the_same_settings(two, folder):
    script = folder / "show.py"
    script.write_text(SHOW)
    command = [*RANNC, "-n", "3", "--hosts", "h1:1,h2:2", "--env", "MINE", str(script)]
    # Two cores at most, so that numbers of threads tell hosts with one rank from those with two.
    pinned = ["taskset", "-c", "0,1", *command]
    mine = {"RANNC_SCHEDULE": "gpipe", "MINE": "a b", "NOT_MINE": "1"}
    done = two.run("h1", pinned, env=mine)
    assert done.returncode == 0, done.stderr
    found = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda it: it[1])
    hosts, ranks, *values = zip(*found, strict=True)
    assert hosts == ("h1", "h2", "h2") and ranks == ("0", "1", "2")
    assert values[:3] == [("gpipe",) * 3, ("0",) * 3, ("1",) * 3]
    assert values[3][0] == "2" and len(set(values[3][1:])) == 1
    assert values[4] == ("a b",) * 3
    assert values[5] == ("1", None, None)


def test_a_variable_that_is_not_there_is_one_line(two):
    done = two.run("h1", [*RANNC, "--env", "NOWHERE", "-c", "1"])
    assert done.returncode == 2
    assert done.stderr == "rannc run: --env NOWHERE: there is no such variable here\n"
