"""Runs one list of parts on this machine's GPU, and leaves what came of them in docs/gpu/NAME.json.

    python tests/gpu/run.py test | bench | memory

Each part is a process with a deadline of its own; one that fails does not stop the next. The lists
stay below eight minutes together, the most telling parts first. What a part prints as its last line
is JSON: its figures. With TEST_DEVICE=standin all runs on the stand-in device, to try these scripts
where there is no GPU; nothing is written then.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DEVICE = os.environ.get("TEST_DEVICE", "cuda")


def ranks(number, script, *arguments, **environment):
    """A part on several processes."""
    from pyrannc import launch

    argv = [sys.executable, str(script), *arguments]
    variables = launch.environment(number) | environment
    return (launch.command(number, argv, environment) if number > 1 else argv), variables


def equality(number, *cases):
    """Cases of the equality suite on the device; ranks share it where there are fewer."""
    script = ROOT / "tests" / "support" / "jobs" / "equality.py"
    shared = {"RANNC_DEVICE_TRANSPORT": "staged", "RANNC_SHARE_DEVICE": "1"}
    return lambda: ranks(number, script, *cases, TEST_DEVICE=DEVICE, **shared)


def script(number, name):
    """A script beside this one, on ``number`` ranks."""
    return lambda: ranks(number, HERE / name)


def lists():
    """By name: the deadline of each part in seconds, and what gives its command and variables, in
    its turn: without MPI some parts run all the same."""
    small = "loss/{}/m2/b6/float32/sgd/never/{}"
    two = [small.format("auto", "auto")]
    four = [
        small.format("2+2", "gpipe"),
        small.format("1+1+1+1", "1f1b"),
        small.format("2x(2+2)", "interleaved"),
        "loss/2+2/m2/b6/float32/adamw/always/1f1b",
    ]
    return {
        "test": {
            "operators and a plan of one rank": (60, script(1, "one_rank.py")),
            "NCCL with one rank": (60, script(1, "nccl_one_rank.py")),
            "staged, 2 processes": (120, equality(2, *two)),
            "staged, 4 processes, schedules, recompute": (180, equality(4, *four)),
            "NCCL, 2 ranks": (60, script(2, "nccl_ranks.py")),
        },
        "bench": {"GPT-2 medium": (240, script(1, "bench.py"))},
        "memory": {"200 steps": (240, script(1, "memory.py"))},
    }


def run(name, deadline_s, command):
    """What came of a part of the list ``name``."""
    import mpi

    try:
        argv, variables = command()
    except FileNotFoundError as error:  # no mpirun; it says what to install
        return {"passed": False, "figures": {}, "text": str(error)}
    paths = [ROOT, ROOT / "tests" / "support"]
    if name == "test":
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # for deterministic algorithms
    variables = variables | {
        "TEST_DEVICE": DEVICE,
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
    }
    start = time.monotonic()
    pipe = subprocess.PIPE
    job = subprocess.Popen(
        argv, env=variables, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        stdout, stderr = job.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        mpi.kill(job.pid)  # its ranks, too, which would disturb the next part
        job.communicate()
        return {"passed": False, "figures": {}, "text": f"not finished after {deadline_s} s"}
    lines = stdout.strip().splitlines()
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    wrong = [text for report in reports for text in report.get("failures", [])]
    figures = reports[-1].get("figures", {}) if reports else {}
    text = "; ".join(wrong) or (stderr.strip().splitlines() or [""])[-1]
    passed = job.returncode == 0 and not wrong and bool(reports)
    figures["seconds"] = round(time.monotonic() - start, 1)
    return {"passed": passed, "figures": figures, "text": "" if passed else text[-300:]}


def machine():
    import torch

    from pyrannc import _C
    from pyrannc.cli import devices
    from pyrannc.errors import CommError

    try:
        nccl = _C.comm.nccl_version_text(_C.comm.find_nccl()[1])
    except CommError:
        nccl = "none"
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {"gpu": gpu, "torch": torch.__version__, "driver": devices.driver(), "nccl": nccl}


def main(name):
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
    found = machine()
    if DEVICE == "cuda" and found["gpu"] == "none":
        print("this machine has no GPU that torch can use: nothing was run")
        return 1
    parts = {}
    for part, (deadline_s, command) in lists()[name].items():
        parts[part] = run(name, deadline_s, command)
        print(part, json.dumps(parts[part]), flush=True)
    if DEVICE == "cuda":
        result = {"when": time.strftime("%Y-%m-%d"), "machine": found, "parts": parts}
        folder = ROOT / "docs" / "gpu"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(part["passed"] for part in parts.values()) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(*sys.argv[1:]))
