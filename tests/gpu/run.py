"""Runs one list of parts on this machine's GPU, and leaves what came of them in docs/gpu/NAME.json.

    python tests/gpu/run.py test | bench | memory

Each part is a process with a deadline of its own; one that fails does not stop the next. A list
takes at most eight minutes, the most telling parts first. A part prints lines of JSON with its
figures and failures, the last of which counts. With TEST_DEVICE=standin all runs on the stand-in
device, and with TEST_SMALL=1 on small models, to try these scripts where there is no GPU; nothing
is written then.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DEVICE = os.environ.get("TEST_DEVICE", "cuda")
PATHS = [ROOT, ROOT / "tests" / "support", HERE]
# Of a list; what is left of eight minutes is for what is done before and between its parts.
LIST_S = 465
LEAST_S = 10  # a part with less would not come to anything
# Threads that do a device's work on a busy host are held to no eight minutes.
PATIENCE = 1 if DEVICE == "cuda" else 5
DRIVER = Path("/proc/driver/nvidia/version")


def part(number, name, *arguments, **environment):
    """What gives the command and the variables of a script on ``number`` ranks, in its turn:
    without MPI some parts run all the same."""

    def started():
        from pyrannc import launch

        argv = [sys.executable, str(HERE / name), *arguments]
        variables = launch.environment(number) | environment
        return (launch.command(number, argv, environment) if number > 1 else argv), variables

    return started


def on_ranks(number, name, *arguments):
    """The same over pinned memory, on the one device where there are no others."""
    shared = {"RANNC_DEVICE_TRANSPORT": "staged", "RANNC_SHARE_DEVICE": "1"}
    return part(number, name, *arguments, TEST_DEVICE=DEVICE, **shared)


def lists():
    """By name: the deadline of each part in seconds, and what gives its command and variables."""
    case = "{}/{}/m2/b6/float32/{}"
    two = [
        case.format("loss", "auto", "sgd"),
        case.format("residual_cnn", "1+1", "sgd/always/gpipe"),
        case.format("tied_lm", "1+1", "adamw/never/1f1b"),
    ]
    four = [
        case.format("loss", "2+2", "sgd/never/gpipe"),
        case.format("loss", "1+1+1+1", "sgd/never/1f1b"),
        case.format("loss", "2x(2+2)", "sgd/never/interleaved"),
        case.format("loss", "2+2", "adamw/always/1f1b"),
        case.format("encoder", "1+1+1+1", "adamw/mixed/gpipe"),
    ]
    return {
        "test": {
            "operators and plans of one rank": (45, part(1, "equality/one_rank.py")),
            "whole modules on one rank": (90, part(1, "equality/modules.py")),
            "NCCL with one rank": (40, part(1, "equality/nccl_one_rank.py")),
            "four ranks as threads": (60, part(1, "equality/threads.py")),
            "staged, 2 processes": (70, on_ranks(2, "equality/processes.py", *two)),
            "staged, 4 processes, schedules, recompute": (
                100,
                on_ranks(4, "equality/processes.py", *four),
            ),
            "bf16 and GradScaler, 2 processes": (70, on_ranks(2, "equality/precision.py")),
            "NCCL, 2 ranks": (50, part(2, "equality/nccl_ranks.py")),
        },
        "bench": {
            "GPT-2 medium in bf16": (150, part(1, "bench/speed.py", "GPT-2 medium")),
            "ResNet-50 in bf16": (100, part(1, "bench/speed.py", "ResNet-50")),
            "4 and 8 micro-batches": (140, part(1, "bench/micro_batches.py", "4", "8")),
            "catalogue and operators": (60, part(1, "bench/catalogue.py")),
            "torch.compile": (150, part(1, "bench/compiled.py")),
        },
        "memory": {
            "four plans": (200, part(1, "memory/plans.py")),
            "a plan at 95 % of the memory": (90, part(1, "memory/limit.py")),
            "many steps": (100, part(1, "memory/many_steps.py")),
            "many steps, 2 processes": (60, on_ranks(2, "memory/many_steps.py")),
            "compute-sanitizer": (150, part(1, "memory/sanitizer.py")),
        },
    }


# NCCL refuses two ranks on one GPU unless their hosts look different, and nobody promises more.
WITHOUT_VERDICT = {"NCCL, 2 ranks"}


def run(name, deadline_s, command):
    """What came of a part of the list ``name``."""
    begin = time.monotonic()
    try:
        argv, variables = command()
        variables |= {
            "TEST_DEVICE": DEVICE,
            "TERM": "dumb",  # no bars of progress
            "PYTHONPATH": os.pathsep.join([*map(str, PATHS), os.environ.get("PYTHONPATH", "")]),
        }
        if name == "test":
            variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # for deterministic algorithms
        code, stdout, stderr = finished(argv, variables, deadline_s)
    except Exception as error:  # such as no mpirun, which says what to install
        return {"passed": False, "figures": {}, "text": f"{type(error).__name__}: {error}"}
    reports = list(read(stdout))
    wrong = list(dict.fromkeys(text for each in reports for text in each.get("failures", [])))
    figures = {}
    for each in reports:
        figures |= each.get("figures", {})
    cases = sum("case" in each for each in reports)
    figures |= {"cases": cases} if cases else {}
    if code is None:
        wrong.append(f"not finished after {deadline_s:.0f} s")
    elif code != 0 or not reports:
        last = (stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        wrong.append(f"exit code {code}: {last[-300:]}")
    figures["seconds"] = round(time.monotonic() - begin, 1)
    if wrong and os.environ.get("TEST_VERBOSE"):
        print(stderr, file=sys.stderr, flush=True)
    return {"passed": not wrong, "figures": figures, "text": "; ".join(wrong)[:1000]}


def finished(argv, variables, deadline_s):
    """Exit code, or None where the deadline came first, and what was printed until then."""
    import mpi

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        job = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=variables,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            code = job.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            code = None
            with contextlib.suppress(ProcessLookupError):  # one of them has just ended
                mpi.kill(job.pid)  # its ranks, too, which would disturb the next part
            job.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return code, *texts


def read(stdout):
    """The reports of all lines that are one; lines of several ranks may have mixed."""
    for line in stdout.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                yield {"failures": [f"a line is no JSON: {line[:100]}"]}


def machine():
    """Texts for docs/gpu-status.md; what cannot be found out is a text, too."""
    import torch

    from pyrannc import _C

    def nccl():
        return _C.comm.nccl_version_text(_C.comm.find_nccl()[1])

    def driver():
        return DRIVER.read_text().splitlines()[0].removeprefix("NVRM version:").strip()

    def gpu():
        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"

    found = {"gpu": gpu, "driver": driver, "nccl": nccl}
    for key, ask in found.items():
        try:
            found[key] = ask()
        except Exception:  # no driver, no library: that is what is said
            found[key] = "none"
    return found | {"torch": torch.__version__, "python": sys.version.split()[0]}


def write(name, found, parts):
    folder = ROOT / "docs" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    result = {"when": time.strftime("%Y-%m-%d"), "machine": found, "parts": parts}
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def main(name):
    sys.path[:0] = map(str, PATHS)
    found = machine()
    if DEVICE == "cuda" and found["gpu"] == "none":
        print("this machine has no GPU that torch can use: nothing was run")
        return 1
    parts, begin = {}, time.monotonic()
    for title, (deadline_s, command) in lists()[name].items():
        left = PATIENCE * LIST_S - (time.monotonic() - begin)
        if left < LEAST_S:
            text = "not run: the eight minutes were over"
            parts[title] = {"passed": False, "figures": {}, "text": text}
        else:
            parts[title] = run(name, min(PATIENCE * deadline_s, left), command)
        parts[title]["counts"] = title not in WITHOUT_VERDICT
        print(title, json.dumps(parts[title]), flush=True)
        if DEVICE == "cuda":
            write(name, found, parts)  # after each: what comes may end this process, too
    return 0 if all(each["passed"] or not each["counts"] for each in parts.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
