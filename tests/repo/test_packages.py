"""The arrows between the packages of pyrannc/: none against a model's way, and no circle."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pyrannc"
# These use no others, and all may use them.
FOR_ALL = {
    "_C",
    "__version__",
    "config",
    "errors",
    "files",
    "log",
    "native",
    "operators",
    "original",
    "progress",
    "ranks",
    "tracebacks",
}
BELOW = {
    "capture": set(),
    "stored": {"state"},
    "materialize": {"stored", "capture", "job", "state"},
    "job": {"state"},
    "state": set(),
    "planner": set(),
    "show": {"planner"},
    "launch": {"job"},
    "live_deployments": {"state"},
    "loop": {"live_deployments", "optimizer", "job", "state"},
    "generation": {"capture", "state"},
    "optimizer": {"live_deployments", "job", "state"},
    "selfcheck": {"capture", "job", "state"},
    "profiling": {"capture", "job", "optimizer"},
    "planning": {"profiling", "optimizer", "job", "state"},
    "hooks": {"capture", "state"},
    "report": {"optimizer", "job", "state"},
    "trial": {"capture", "planning", "report", "job", "selfcheck", "state"},
    "running": {
        "live_deployments",
        "trial",
        "planning",
        "report",
        "optimizer",
        "loop",
        "capture",
        "job",
        "state",
    },
}
BELOW["wrapper"] = {
    "capture", "hooks", "launch", "job", "loop", "materialize", "optimizer", "running", "state",
}  # fmt: skip
BELOW["deploy"] = BELOW.keys() - {"launch", "planner", "show"}
BELOW["module"] = BELOW.keys() - {"planner", "show"}
BELOW["integrations"] = {"module", "wrapper", "launch", "state", "job"}
BELOW["checkpoint"] = {
    "module", "live_deployments", "running", "loop", "optimizer", "state", "launch", "stored",
    "materialize", "job",
}  # fmt: skip
BELOW["comm_utils"] = {"launch", "live_deployments", "loop", "job", "state"}
BELOW["amp"] = BELOW["opt"] = set()
BELOW["cli"] = {"launch", "planner", "profiling", "checkpoint", "show", "stored", "job"}


def imported(path):
    """The first name below pyrannc of all that a file imports from it, at its top or later."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            full = [*base, *(node.module.split(".") if node.module else [])]
            names = [[*full, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        else:
            continue
        yield from (name[1] for name in names if name[0] == "pyrannc" and len(name) > 1)


def files(name):
    module = PACKAGE / f"{name}.py"
    return [module] if module.exists() else list((PACKAGE / name).rglob("*.py"))


def test_every_package_and_module_is_in_the_table():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "_build_info"}
    assert packages | modules == BELOW.keys() | (FOR_ALL - {"_C", "__version__"})


def test_each_imports_only_what_is_below_it():
    for name, below in BELOW.items():
        for path in files(name):
            above = set(imported(path)) - below - FOR_ALL - {name}
            assert not above, f"{path}: '{name}' may import only {sorted(below)}, not {above}"


def test_what_all_use_uses_none_of_them():
    for name in FOR_ALL - {"_C", "__version__"}:
        for path in files(name):
            above = set(imported(path)) - FOR_ALL - {"_build_info"}
            assert not above, f"{path} is for all, and imports {above}"


def test_the_table_has_no_circle():
    done = set()
    while left := BELOW.keys() - done:
        free = {name for name in left if BELOW[name] <= done}
        assert free, f"each of {sorted(left)} is below another one"
        done |= free


# Who sends bytes to other ranks by itself, and why not by ranks.py or state/mover.py.
TELLS_BY_ITSELF = {
    "ranks.py": "what does it for the others",
    "state/mover.py": "the same, of tensors",
    "generation/generate.py": "three numbers for each token",
    "capture/arguments/rank_0.py": "what may not be possible to send, of which rank 0 tells then",
    "trial/measured_runs.py": "as many bytes as in a call, for the time that they take",
}


def test_values_and_tensors_go_to_other_ranks_in_one_place_each():
    sends = re.compile(r"(world|comm)\.(all_gather|broadcast)\w*\(|runtime\.move_parts\(")
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if sends.search(path.read_text())
    }
    assert found == set(TELLS_BY_ITSELF)
