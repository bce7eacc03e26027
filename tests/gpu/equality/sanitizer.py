"""compute-sanitizer over tiny models: memory that kernels touch wrongly, or in a wrong order.

It is looked for on the path and where CUDA is installed. torch's asynchronous allocator hands out
memory in the order of streams, which memcheck can then follow.

    python tests/gpu/equality/sanitizer.py            runs it over the following, where it is found
    python tests/gpu/equality/sanitizer.py watched    what it runs
"""

import faulthandler
import os
import shutil
import subprocess
import sys

import device
from report import Report

PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda/compute-sanitizer")
OPTIONS = (
    "--tool", "memcheck", "--track-stream-ordered-races", "all", "--error-exitcode", "99",
    "--print-limit", "20", "--report-api-errors", "no",
)  # fmt: skip
FOUND = 99
ALLOCATOR = {
    # By its name of until torch 2.9, and of later ones.
    "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
    "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
}
DEADLINE_S = 135


def sanitizer():
    """Its path; None where there is none."""
    for place in (None, *PLACES):
        found = shutil.which("compute-sanitizer", path=place)
        if found:
            return found
    return None


def watched():
    """A wrapped model on one rank, and plans of four ranks as threads."""
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)  # whoever has started it may be gone
    import steps
    import threads
    import timed_models

    from pyrannc import launch

    launch.world()
    place = device.start(deterministic=False)
    for name, model in timed_models.SMALL.items():
        batches = 1 if name == "ResNet-50" else 2
        step, _ = steps.wrapped(model, place, pipeline_num=batches, calibrate=False)
        steps.warm_up(step, 3)
    wrong = [each for seed in range(2) for each in threads.differing(seed, place, seed == 1)]
    if wrong:
        raise AssertionError(f"{len(wrong)} tensors differ, first {wrong[0]}")
    print("all was run", flush=True)


def run(report):
    program = sanitizer()
    if program is None and device.NAME == "cuda":
        report.figures["compute-sanitizer"] = "not found: it was not run"
        return
    command = [program, *OPTIONS] if program and device.NAME == "cuda" else []
    variables = os.environ | (ALLOCATOR if command else {})
    own = [sys.executable, __file__, "watched"]
    job = subprocess.run(
        [*command, *own], env=variables, capture_output=True, text=True, timeout=DEADLINE_S + 10
    )
    said = [line.strip("= ") for line in job.stdout.splitlines() if line.startswith("=====")]
    if not command:
        report.figures["compute-sanitizer"] = "not for the stand-in device: it was not run"
    elif said:
        report.figures["compute-sanitizer"] = said[-1]
    ends = (job.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    report.expect(job.returncode != FOUND, f"errors were found: {'; '.join(said[1:6])[:600]}")
    report.expect(
        job.returncode == FOUND or "all was run" in job.stdout,
        f"not all was run: exit code {job.returncode}: {ends[:300]}",
    )


def main():
    report = Report()
    with report.case("compute-sanitizer"):
        run(report)


if __name__ == "__main__":
    watched() if sys.argv[1:] == ["watched"] else main()
