"""Runs one list of parts on this machine's GPU, and leaves what came of them in docs/gpu/NAME.json.

    python tests/gpu/run.py test | bench | memory [PART ...]

With PARTs those run whose names begin so; of the others what came of them before is kept. Each is a
process with a deadline of its own; one that fails does not stop the next. A list takes at most
eight minutes, the most telling parts first; where nothing is measured some run beside each other. A
part prints lines of JSON with its figures and failures, the last of which counts. With
TEST_DEVICE=standin all runs on the stand-in device, and with TEST_SMALL=1 on small models, to try
these scripts where there is no GPU; nothing is written then.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
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
# Parts of a list that run at a time, on a device; what is measured runs alone.
BESIDE = {"test": 7}
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


def on_ranks_of_nccl(number, *cases):
    """Whole models over NCCL on the one device."""
    over = {"TEST_NCCL": "1", "RANNC_DEVICE_TRANSPORT": "nccl"}
    return part(number, "equality/processes.py", *cases, TEST_DEVICE=DEVICE, **over)


def in_a_group_of_nccl(number):
    """Layers that ranks compute together, over NCCL on the one device."""
    return part(number, "equality/tensor_parallel.py", TEST_DEVICE=DEVICE, TEST_NCCL="1")


def lists():
    """By name: the deadline of each part in seconds, and what gives its command and variables."""
    # AdamW makes a step of any size of what is rounding alone, as the gradient of a key's bias.
    case, exact = "{}/{}/m2/b6/float32/{}", "{}/{}/m2/b6/float64/{}"
    two = [
        case.format("loss", "auto", "sgd"),
        case.format("residual_cnn", "1+1", "sgd/always/gpipe"),
        case.format("tied_lm", "1+1", "sgd/never/1f1b"),
        exact.format("tied_lm", "1+1", "adamw/never/1f1b"),
    ]
    four = [
        case.format("loss", "2+2", "sgd/never/gpipe"),
        case.format("loss", "1+1+1+1", "sgd/never/1f1b"),
        case.format("loss", "2x(2+2)", "sgd/never/interleaved"),
        case.format("loss", "2+2", "adamw/always/1f1b"),
        exact.format("encoder", "1+1+1+1", "adamw/mixed/gpipe"),
        case.format("encoder", "2+2", "sgd/always/gpipe"),
    ]
    over_nccl = [
        exact.format("loss", "2", "sgd/never/1f1b"),
        exact.format("tied_lm", "1+1", "adamw/never/1f1b"),
        exact.format("encoder", "1+1", "sgd/always/gpipe"),
    ]
    four_over_nccl = [
        exact.format("loss", "2+2", "sgd/never/1f1b"),
        exact.format("loss", "2x(2+2)", "sgd/never/interleaved"),
        exact.format("encoder", "2+1+1", "adamw/always/gpipe"),
    ]
    return {
        "test": {
            "operators and plans of one rank": (90, part(1, "equality/one_rank.py")),
            "whole modules on one rank": (120, part(1, "equality/modules.py")),
            "NCCL with one rank": (60, part(1, "equality/nccl_one_rank.py")),
            "four ranks as threads": (90, part(1, "equality/threads.py")),
            "staged, 2 processes": (100, on_ranks(2, "equality/processes.py", *two)),
            "staged, 4 processes, schedules, recompute": (
                130,
                on_ranks(4, "equality/processes.py", *four),
            ),
            "bf16 and GradScaler, 2 processes": (100, on_ranks(2, "equality/precision.py")),
            "compute-sanitizer": (150, part(1, "equality/sanitizer.py")),
            "NCCL, 2 ranks": (60, part(2, "equality/nccl_ranks.py")),
            "NCCL, whole models on 2 ranks": (100, on_ranks_of_nccl(2, *over_nccl)),
            "NCCL, whole models on 4 ranks": (100, on_ranks_of_nccl(4, *four_over_nccl)),
            "tensor parallelism, staged, 2 processes": (
                60,
                on_ranks(2, "equality/tensor_parallel.py"),
            ),
            "NCCL, tensor parallelism on 2 ranks": (60, in_a_group_of_nccl(2)),
            **{
                f"architectures of transformers, {number + 1} of {SHARES}": (
                    150,
                    part(1, "equality/zoo.py", str(number), str(SHARES)),
                )
                for number in range(SHARES)
            },
        },
        "bench": {
            "GPT-2 medium in bf16": (150, part(1, "bench/speed.py", "GPT-2 medium")),
            "ResNet-50 in bf16": (100, part(1, "bench/speed.py", "ResNet-50")),
            "4 and 8 micro-batches": (140, part(1, "bench/micro_batches.py", "4", "8")),
            "catalogue and operators": (60, part(1, "bench/catalogue.py")),
            "torch.compile": (150, part(1, "bench/compiled.py")),
        },
        "memory": {
            "four plans": (100, part(1, "memory/plans.py")),
            "a plan at 90 % of the memory, which is the default": (
                90,
                part(1, "memory/limit.py", "0.9"),
            ),
            "a plan at 95 %, segments that grow": (
                90,
                part(1, "memory/limit.py", "0.95", **GROWING),
            ),
            "four plans, segments that grow": (150, part(1, "memory/plans.py", **GROWING)),
            "many steps": (100, part(1, "memory/many_steps.py")),
            "many steps, 2 processes": (60, on_ranks(2, "memory/many_steps.py")),
        },
    }


# Without it torch's allocator can reserve some percent more than is allocated.
GROWING = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
SHARES = 6  # of the architectures, each in a process
# NCCL refuses two ranks on one GPU unless their hosts look different, and nobody promises more.
WITHOUT_VERDICT = {
    "NCCL, 2 ranks",
    "NCCL, whole models on 2 ranks",
    "NCCL, whole models on 4 ranks",
    "NCCL, tensor parallelism on 2 ranks",
}


def run(name, deadline_s, command):
    """What came of a part of the list ``name``."""
    begin = time.monotonic()
    try:
        argv, variables = command()
        variables |= {
            "TEST_DEVICE": DEVICE,
            "TERM": "dumb",  # no bars of progress
            "PYTHONFAULTHANDLER": "1",
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
            for rank in mpi.children(job.pid) or [job.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGABRT)  # it writes where it is: Python's faulthandler
            time.sleep(1)
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
        return re.search(r"\s(\d+\.[\d.]+)\s", DRIVER.read_text().splitlines()[0])[1]

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


def before(name):
    """What came of the parts of a list when they last ran."""
    file = ROOT / "docs" / "gpu" / f"{name}.json"
    return json.loads(file.read_text())["parts"] if file.exists() else {}


def main(name, *beginnings):
    sys.path[:0] = map(str, PATHS)
    found = machine()
    if DEVICE == "cuda" and found["gpu"] == "none":
        print("this machine has no GPU that torch can use: nothing was run")
        return 1
    every, deadline = lists()[name], time.monotonic() + PATIENCE * LIST_S
    wanted = [title for title in every if title.startswith(beginnings or "")]
    parts = before(name) if beginnings else {}

    def outcome(title):
        deadline_s, command = every[title]
        left = deadline - time.monotonic()
        if left < LEAST_S:
            return {"passed": False, "figures": {}, "text": "not run: the eight minutes were over"}
        return run(name, min(PATIENCE * deadline_s, left), command)

    beside = BESIDE.get(name, 1) if DEVICE == "cuda" else 1
    with concurrent.futures.ThreadPoolExecutor(beside) as pool:
        running = {pool.submit(outcome, title): title for title in wanted}
        for done in concurrent.futures.as_completed(running):
            title = running[done]
            parts[title] = done.result() | {"counts": title not in WITHOUT_VERDICT}
            print(title, json.dumps(parts[title]), flush=True)
            if DEVICE == "cuda":  # after each: what comes may end this process, too
                write(name, found, {each: parts[each] for each in every if each in parts})
    passed = all(parts[each]["passed"] or not parts[each]["counts"] for each in wanted)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
