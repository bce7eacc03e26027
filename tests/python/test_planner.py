"""The program rannc-plan and what calls it: `rannc plan`, `pyrannc.plan`. No torch anywhere."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

import pyrannc
from pyrannc import planner

ROOT = Path(__file__).parents[2]
CLUSTER = {
    "format": "rannc-cluster", "version": 1, "hosts": 2, "devices_per_host": 2,
    "device_memory_bytes": 1e9,
    "intra_host": {"bandwidth_bytes_per_s": 1e9, "latency_ns": 10},
    "inter_host": {"bandwidth_bytes_per_s": 1e8, "latency_ns": 100},
}  # fmt: skip
REQUEST = {"format": "rannc-plan-request", "version": 1, "global_batch": 8}


def chain(length):
    """Blocks of two nodes; names are module paths."""
    names = [f"blocks.{i // 2}.{'up' if i % 2 == 0 else 'down'}" for i in range(length)]
    nodes = [
        {
            "name": name, "op": "linear", "inputs": [names[i - 1] if i else "x"],
            "params": [f"{name}.weight"], "outputs": [{"bytes_per_row": 100}],
            "forward_ns": [1000 + i], "backward_ns": [2000], "saved_bytes": [100],
        }
        for i, name in enumerate(names)
    ]  # fmt: skip
    return {
        "format": "rannc-graph-profile", "version": 1, "rows": [1],
        "inputs": [{"name": "x", "bytes_per_row": 100}],
        "params": [{"id": f"{name}.weight", "bytes": 1000} for name in names], "nodes": nodes,
    }  # fmt: skip


def rannc(*arguments, **options):
    """`rannc ...` in a process where importing torch fails."""
    script = "import sys; sys.modules['torch'] = None; from pyrannc.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True,
        timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(chain(8)))
    (tmp_path / "c.toml").write_text(planner._toml(CLUSTER))
    (tmp_path / "r.json").write_text(json.dumps(REQUEST))
    return tmp_path


INPUTS = ("--graph", "g.json", "--cluster", "c.toml", "--request", "r.json")


def test_paths_and_dictionaries_and_the_command_give_the_same_plan(files):
    by_paths = pyrannc.plan(
        graph=files / "g.json", cluster=str(files / "c.toml"), request=files / "r.json"
    )
    by_values = pyrannc.plan(chain(8), CLUSTER, REQUEST, threads=1)
    done = rannc("plan", *INPUTS, "-o", "plan.json", cwd=files)
    assert done.returncode == 0, done.stderr
    by_command = json.loads((files / "plan.json").read_text())
    assert by_paths == by_values == by_command
    assert by_paths["feasible"] and "stage" in done.stdout


def test_a_schedule_that_needs_a_loss_is_told_of_a_model_that_returns_none(files):
    graph = chain(8) | {"params": [each | {"bytes": 1e8} for each in chain(8)["params"]]}
    graph["nodes"] = [node | {"saved_bytes": [2e7]} for node in graph["nodes"]]
    (files / "g.json").write_text(json.dumps(graph))
    done = rannc("plan", *INPUTS[:4], "--global-batch", "8", cwd=files)
    assert "schedule 1f1b" in done.stdout
    assert "The model returns no loss, which schedule 1f1b needs" in done.stderr

    graph["nodes"][-1]["outputs"] = [{"fixed_bytes": 4}]
    (files / "g.json").write_text(json.dumps(graph))
    done = rannc("plan", *INPUTS[:4], "--global-batch", "8", cwd=files)
    assert "schedule 1f1b" in done.stdout and done.stderr == ""


def test_numbers_may_be_those_of_numpy_or_too_large_for_toml():
    graph = chain(4)
    graph["rows"] = numpy.array(graph["rows"])
    cluster = CLUSTER | {"device_memory_bytes": numpy.float64(CLUSTER["device_memory_bytes"])}
    expected = pyrannc.plan(chain(4), CLUSTER, REQUEST)
    assert pyrannc.plan(graph, cluster, REQUEST) == expected
    cluster = CLUSTER | {"hosts": numpy.int64(CLUSTER["hosts"])}
    assert pyrannc.plan(graph, cluster, REQUEST, global_batch=None) == expected
    assert pyrannc.plan(graph, CLUSTER | {"device_memory_bytes": 10**20}, REQUEST)["feasible"]


def test_arguments_of_another_kind_are_named_or_taken():
    with pytest.raises(pyrannc.PlannerInputError, match="lists and dictionaries, not set"):
        pyrannc.plan(chain(4) | {"rows": {1, 4}}, CLUSTER, REQUEST)
    with pytest.raises(
        pyrannc.PlannerInputError, match=r"pins is \['n1=0'\]: it must be a dictionary"
    ):
        pyrannc.plan(chain(4), CLUSTER, REQUEST, pins=["n1=0"])
    name = chain(4)["nodes"][1]["name"]
    whole = pyrannc.plan(chain(4), CLUSTER, REQUEST, whole=name)
    assert whole == pyrannc.plan(chain(4), CLUSTER, REQUEST, whole=[name])


def test_a_listener_hears_how_far_the_search_is(files):
    heard = []
    graph = chain(500)
    for node in graph["nodes"]:
        node["name"] += "." + 200 * "a"  # for a plan that fills a pipe
    for before, node in itertools.pairwise(graph["nodes"]):
        node["inputs"] = [before["name"]]
    plan = pyrannc.plan(graph, CLUSTER, REQUEST, progress=heard.append)
    assert len(json.dumps(plan)) > 2**16 and plan == pyrannc.plan(graph, CLUSTER, REQUEST)
    assert heard == sorted(heard) and 0 < heard[0] < heard[-1] == 1
    with pytest.raises(pyrannc.PlannerInputError, match=r"^graph\.json: \$\.nodes: is empty"):
        pyrannc.plan(chain(0), CLUSTER, REQUEST, progress=heard.append)


def test_a_plan_is_evaluated_shown_and_explained(files):
    plan = pyrannc.plan(chain(8), CLUSTER, REQUEST)
    verdict = pyrannc.evaluate(plan, chain(8), CLUSTER, REQUEST)
    assert verdict["valid"] and verdict["iteration_ns"] == plan["iteration_ns"]
    assert verdict["stages"] == [stage["predicted"] for stage in plan["stages"]]

    (files / "plan.json").write_text(json.dumps(plan))
    for command in (("show",), ("show", "--timeline"), ("explain",)):
        module = ["blocks.3"] if command == ("explain",) else []
        done = rannc(*command, "plan.json", *module, cwd=files)
        assert done.returncode == 0 and "stage" in done.stdout, done.stderr
    done = rannc("evaluate", *INPUTS, "--plan", "plan.json", cwd=files)
    assert done.returncode == 0 and done.stdout.startswith("The plan is valid and fits.")


def test_an_invalid_plan_is_said_to_be_and_is_no_error():
    plan = pyrannc.plan(chain(8), CLUSTER, REQUEST)
    plan["micro_batches"] = 3
    verdict = pyrannc.evaluate(plan, chain(8), CLUSTER, REQUEST)
    assert not verdict["valid"] and "3 micro-batches" in verdict["problems"][0]


def test_nothing_fits_is_an_answer_with_a_reason(files):
    small = CLUSTER | {"device_memory_bytes": 100}
    plan = pyrannc.plan(chain(8), small, REQUEST)
    assert not plan["feasible"] and plan["reason"]
    (files / "c.toml").write_text(planner._toml(small))
    done = rannc("plan", *INPUTS, cwd=files)
    assert done.returncode == 3
    # As a sentence, and once: the reason itself begins with "no plan fits".
    assert plan["reason"].startswith("no plan fits: ") and "N" + plan["reason"][1:] in done.stderr
    assert done.stderr.lower().count("no plan fits") == 1


def test_bad_input_names_the_file_and_the_place(files):
    with pytest.raises(pyrannc.PlannerInputError, match=r"^graph\.json: \$\.nodes: is empty"):
        pyrannc.plan(chain(0), CLUSTER, REQUEST)
    with pytest.raises(pyrannc.PlannerInputError, match=r"^cluster\.toml: line 3, .*hosts"):
        pyrannc.plan(chain(2), CLUSTER | {"hosts": 0}, REQUEST)
    with pytest.raises(pyrannc.PlannerInputError, match="--global-batch"):
        pyrannc.plan(chain(2), CLUSTER)
    done = rannc("plan", "--graph", "no.json", *INPUTS[2:], cwd=files)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rannc: no.json: cannot be read: No such file or directory\n"


def test_a_plan_written_by_hand_has_no_notes_and_is_shown():
    plan = {
        "format": "rannc-plan", "version": 1, "schedule": "gpipe", "micro_batches": 4,
        "stages": [{"nodes": ["a", "b", "c"], "ranks": [0, 1, 2]}, {"nodes": ["d"], "ranks": [3]}],
    }  # fmt: skip
    text = planner.show(plan, batch_size=18)
    assert text.startswith("2 stages on 4 ranks, 4 micro-batches of 4 to 5 rows, schedule gpipe\n")
    assert "a ... c (3 nodes)" in text


def signal_is_pending(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("ShdPnd:\t")[1].split()[0], 16) != 0


@pytest.mark.parametrize("options, code", [([], 130), (["--time-limit", "600"], 0)])
def test_ctrl_c_ends_the_program_or_gives_the_best_plan_so_far(files, options, code):
    # The graph comes through a pipe, so that the program is certain to be at work when it is told.
    os.mkfifo(files / "pipe.json")
    process = subprocess.Popen(
        [planner.program(), "plan", "--graph", "pipe.json", *INPUTS[2:], "-o", "plan.json",
         *options],
        cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with open(files / "pipe.json", "w") as pipe:  # waits until the program has opened it
        process.send_signal(signal.SIGINT)
        if code == 130:
            process.wait(timeout=60)
        else:
            while signal_is_pending(process.pid):
                time.sleep(0.01)
            pipe.write(json.dumps(chain(8)))
    out, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert (files / "plan.json").exists() == (code == 0)
    assert sorted(p.name for p in files.iterdir() if p.name.startswith("plan.json")) == (
        ["plan.json"] if code == 0 else []
    )
    if code == 0:
        assert "stage" in out
