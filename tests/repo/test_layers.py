"""The arrows between modules: who may include whom, and who may see torch, MPI and CUDA."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = {
    "util": set(),
    "ir": {"util"},
    "plan": {"ir", "util"},
    "cost": {"ir", "util"},
    "predict": {"cost", "plan", "ir", "util"},
    "partition": {"predict", "cost", "plan", "ir", "util"},
    "comm": {"util"},
    "rannc_plan": {"partition", "predict", "cost", "plan", "ir", "util"},
}
TORCH = {
    "ops": {"ir", "util"},
    "frontend": {"ir", "util"},
    "profile": {"ops", "cost", "comm", "ir", "util"},
    "runtime": {"ops", "plan", "comm", "ir", "util"},
}
EVERYTHING = set(CORE) | set(TORCH)
BACKENDS = {"mpi", "nccl", "staged", "c10d"}
TORCH_HEADER = re.compile(r'#include [<"](torch/|ATen/|c10/|pybind11/)')
TRANSPORT_HEADER = re.compile(r'#include [<"](mpi\.h|nccl\.h|cuda)')
FMT_HEADER = re.compile(r'#include [<"](fmt/|spdlog/)')


def sources(module):
    for folder in (ROOT / "src" / module, ROOT / "include" / "rannc" / module):
        yield from (path for path in folder.rglob("*") if path.suffix in {".h", ".cpp"})


def included_modules(path):
    return set(re.findall(r'#include "(?:rannc/)?(\w+)/', path.read_text())) & EVERYTHING


def test_every_module_includes_only_what_is_below_it():
    for module, below in {**CORE, **TORCH}.items():
        assert list(sources(module)), f"{module} has no sources"
        for path in sources(module):
            above = included_modules(path) - below - {module}
            assert not above, f"{path}: '{module}' may include only {sorted(below)}, not {above}"


def test_the_core_is_free_of_torch():
    for module in CORE:
        for path in sources(module):
            assert not TORCH_HEADER.search(path.read_text()), f"{path} includes torch"


def test_transport_headers_stay_in_the_backends_of_comm():
    for path in (ROOT / "src").rglob("*.[ch]*"):
        backend = path.parent.name in BACKENDS and path.parent.parent.name == "comm"
        text = path.read_text()
        assert backend or not TRANSPORT_HEADER.search(text), f"{path} includes MPI, NCCL or CUDA"
        # What a backend includes of its library it keeps to itself.
        assert backend or '#include "comm/mpi/library.h"' not in text, path


def test_no_public_header_and_no_torch_side_file_includes_fmt_or_spdlog():
    public = (ROOT / "include").rglob("*.h")
    torch_side = (path for module in [*TORCH, "bind"] for path in sources(module))
    for path in [*public, *torch_side]:
        assert not FMT_HEADER.search(path.read_text()), f"{path} includes fmt or spdlog"


def test_public_headers_include_only_public_headers():
    for path in (ROOT / "include").rglob("*.h"):
        for header in re.findall(r'#include "([^"]+)"', path.read_text()):
            assert (ROOT / "include" / header).is_file(), f"{path}: {header} is not public"


# What predictions and notes onto a plan take is not public yet.
FOREIGN_HEADERS = {"src/rannc_plan/evaluate_command.cpp"}


def test_private_headers_stay_in_their_module():
    for path in (ROOT / "src").rglob("*.[ch]*"):
        name = path.relative_to(ROOT)
        others = {
            header
            for header in re.findall(r'#include "([^"]+)"', path.read_text())
            if header.split("/")[0] not in {"rannc", name.parts[1]}
        }
        assert not others or str(name) in FOREIGN_HEADERS, (
            f"{name}: {sorted(others)} belong to other modules"
        )


def test_planning_commands_need_no_torch():
    heavy = re.compile(r"^\s*(import torch|from torch|from pyrannc import _C)", re.MULTILINE)
    for name in ("planner.py", "cli/__init__.py", "__init__.py"):
        text = (ROOT / "pyrannc" / name).read_text()
        top = text.split("\ndef ")[0]  # functions may import at their first use
        assert not heavy.search(top), f"pyrannc/{name} imports torch when it is loaded"
