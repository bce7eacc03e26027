"""Writes docs/gpu-status.md from what `make gpu-test`, `gpu-bench` and `gpu-bench-memory` left.

Each of them writes one file of docs/gpu: see tests/gpu/run.py. Without any, the page says so.
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "gpu"
PAGE = ROOT / "docs" / "gpu-status.md"
SINCE = RESULTS / "since.md"  # written by hand: what has been changed after the runs
COMMANDS = {
    "test": "equality with the CPU, NCCL with one rank, several threads and processes, bf16",
    "bench": "speed against eager, predicted against measured steps, operators' costs",
    "memory": "predicted against measured memory, its limit, many steps, compute-sanitizer",
}
NEVER = "No GPU has run this code."
TEXT = """\
`make gpu-status` writes this page from the files that `make gpu-test`, `make gpu-bench` and
`make gpu-bench-memory` leave in `docs/gpu`. Whoever has a GPU runs `make gpu-test` first. All else
that is said of devices was tried on a stand-in device with a stand-in NCCL (`tests/accelerator`,
`tests/nccl`): that proves the order of work, lifetimes and results, and nothing about speed, real
kernels or the real library.
"""


def results():
    """By command, what its file says."""
    return {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in COMMANDS
        if (RESULTS / f"{name}.json").is_file()
    }


def page(found):
    lines = ["# What has run on a GPU", ""] if found else [f"# {NEVER}", ""]
    lines += [
        *TEXT.splitlines(),
        "",
        "| command | what it tries | GPU | when | torch, driver, NCCL | passed | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, what in COMMANDS.items():
        command = f"`make gpu-{'bench-memory' if name == 'memory' else name}`"
        if name not in found:
            lines.append(f"| {command} | {what} | none: it has never run | | | | |")
            continue
        result = found[name]
        parts = [each for each in result["parts"].items() if each[1].get("counts", True)]
        failed = [part for part, outcome in parts if not outcome["passed"]]
        machine = result["machine"]
        versions = ", ".join(machine.get(key, "none") for key in ("torch", "driver", "nccl"))
        lines.append(
            f"| {command} | {what} | {machine['gpu']} | {result['when']} | {cell(versions)} | "
            f"{len(parts) - len(failed)} of {len(parts)} | {', '.join(failed) or 'none'} |"
        )
    for name, result in found.items():
        lines += ["", f"## {name}", "", "| part | outcome | figures |", "|---|---|---|"]
        for part, outcome in result["parts"].items():
            figures = ", ".join(f"{key} {value}" for key, value in outcome["figures"].items())
            lines.append(f"| {part} | {cell(in_words(outcome))} | {cell(figures)} |")
    return "\n".join(lines) + "\n"


def since():
    """What ends the page; goes when all lists have run anew."""
    return f"\n{SINCE.read_text()}" if SINCE.is_file() else ""


def in_words(outcome):
    """What came of a part; of some that may be impossible it is only recorded."""
    if outcome["passed"]:
        return "passed"
    return f"{'failed' if outcome.get('counts', True) else 'recorded'}: {outcome['text']}"


def cell(text):
    """As one cell of a table: errors may have bars and line ends."""
    return " ".join(str(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(results()) + since())
