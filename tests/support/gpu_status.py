"""Writes docs/gpu-status.md from what `make gpu-test`, `gpu-bench` and `gpu-bench-memory` left.

Each of them writes one file of docs/gpu: see tests/gpu/run.py. Without any, the page says so.
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "gpu"
PAGE = ROOT / "docs" / "gpu-status.md"
COMMANDS = {
    "test": "equality with the CPU, NCCL with one rank, several processes",
    "bench": "speed against eager, predicted against measured steps",
    "memory": "predicted against measured memory, memory over many steps",
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
        parts = result["parts"]
        failed = [part for part, outcome in parts.items() if not outcome["passed"]]
        versions = ", ".join(result["machine"][key] for key in ("torch", "driver", "nccl"))
        lines.append(
            f"| {command} | {what} | {result['machine']['gpu']} | {result['when']} | {versions} | "
            f"{len(parts) - len(failed)} of {len(parts)} | {', '.join(failed) or 'none'} |"
        )
    for name, result in found.items():
        lines += ["", f"## {name}", "", "| part | outcome | figures |", "|---|---|---|"]
        for part, outcome in result["parts"].items():
            word = "passed" if outcome["passed"] else f"failed: {outcome['text']}"
            figures = ", ".join(f"{key} {value}" for key, value in outcome["figures"].items())
            lines.append(f"| {part} | {word} | {figures} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(results()))
