"""Finds the tests that a change can affect: ``python tests/support/affected.py COMMIT`` lists them.

The change is what git finds between COMMIT and the working tree. A line is a test and the reason.
With ``--into FOLDER`` the tests are also written there, as arguments of pytest: ``one_process`` and
``ranks``; and ``core``, empty where no test of C++ can notice the change.

Tests come in rings, the nearest first: those at the changed file's mirrored path, those that import
or name the file, those of the files that import it, those of its folder, and so on. The first two
rings always run, the others as far as their seconds fit. ``tests/repo`` always runs, and after a
change of the product ``ALWAYS``. A file of an unknown kind affects everything.
"""

import argparse
import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/repo"))

from test_layers import CORE, TORCH  # noqa: E402

TREE = "tests/repo"
EVERYTHING = (TREE, "tests/python", "tests/torch", "tests/zoo", "tests/dist", "tests/hosts")
# Equality with one process, what users write around the plain loop, and loops of other shapes.
ALWAYS = (
    "tests/dist/test_equality.py::test_losses_equal_one_process",
    "tests/dist/test_equality.py::test_batch_normalisation_of_the_whole_batch_equals_one_process",
    "tests/dist/test_habits.py",
    "tests/dist/test_loops.py",
)
# Seconds that a file of tests takes on two idle cores, about, where they are far from what is usual
# in its tier.
SECONDS = {
    "tests/dist/test_draws.py": 40,
    "tests/dist/test_equality.py": 120,
    "tests/dist/test_failure.py": 40,
    "tests/dist/test_habits.py": 35,
    "tests/dist/test_loops.py": 35,
    "tests/dist/test_outside_losses.py": 4,
    "tests/python/benchmarks/planner/test_arithmetic.py": 5,
    "tests/torch/test_module.py": 30,
}
USUAL = {"python": 1, "torch": 4, "dist": 15, "zoo": 60, "hosts": 30}
# Seconds of the outer rings; both sides run beside each other.
ROOM = {"one_process": 80, "ranks": 60}
# A file that more tests import than this is used by all.
MOST_IMPORTING = 15
# What they name they do not use.
LISTS = ("tests/support/planted_faults.py", "tests/python/support/test_affected.py")
# Files outside of the folders of code that are text to read.
PROSE = {".md", ".cff", ""}


def changed_files(commit: str) -> list[str]:
    """Paths that differ between ``commit`` and the working tree, untracked ones too."""

    def git(*arguments):
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return done.stdout.split("\0")[:-1]

    tracked = git("diff", "-z", "--name-only", "--no-renames", commit)
    return sorted({*tracked, *git("ls-files", "-z", "--others", "--exclude-standard")})


def affected(paths: list[str]) -> tuple[dict[str, str], bool]:
    """The tests for a change of ``paths`` with their reasons, and whether those of C++ run."""
    for path in paths:
        if is_of_unknown_kind(path):
            return dict.fromkeys(EVERYTHING, f"{path} may change everything"), True
    found = {TREE: "always"}
    of_product = any(path.startswith(("pyrannc/", "src/", "include/")) for path in paths)
    # Of these files, so much is enough, unless the change is one of tests.
    parts = {test.split("::")[0] for test in ALWAYS} if of_product else set()
    outer = []
    for path in paths:
        for number, (reason, ring) in enumerate(rings(path)):
            ring = [test for test in ring if test == path or test not in parts]
            if number < 2:
                found = dict.fromkeys(ring, reason) | found
            else:
                outer.append((number, reason, ring))
    room = dict(ROOM)
    for _, reason, ring in sorted(outer, key=lambda item: item[0]):
        for test in ring:
            if test not in found and seconds_of(test) <= room[side_of(test)]:
                room[side_of(test)] -= seconds_of(test)
                found[test] = reason
    if of_product:
        found |= {test: "always" for test in ALWAYS if test.split("::")[0] not in found}
    return found, any(map(is_seen_by_core, paths))


def is_of_unknown_kind(path: str) -> bool:
    top, *inside = Path(path).parts
    if top in ("pyrannc", "src", "include", "tests", "docs", "examples", "benchmarks"):
        return path == "tests/conftest.py"
    return bool(inside) or Path(path).suffix not in PROSE or path == "Makefile"


def is_seen_by_core(path: str) -> bool:
    """Whether the tests of C++ can notice a change; torch's side is no part of them."""
    top, second, *_ = (*Path(path.replace("include/rannc/", "src/")).parts, "")
    if top == "src":
        return second not in {*TORCH, "bind"}
    return top == "tests" and second in ("core", "fuzz")


def seconds_of(test: str) -> float:
    return SECONDS.get(test, USUAL[test.split("/")[1]])


def side_of(test: str) -> str:
    return "ranks" if test.startswith(("tests/dist", "tests/hosts")) else "one_process"


def rings(path: str):
    """Yields ``(reason, tests)`` for one changed file, nearest first."""
    top, second, *_ = (*Path(path).parts, "")
    if path in tests():
        yield "changed", [path]
    elif top == "pyrannc" and path.endswith(".py"):
        yield from rings_of_python(path)
    elif top in ("src", "include"):
        yield from rings_of_cpp(path)
    elif top == "tests" and second in ("support", "nccl", "accelerator"):
        yield f"using {path}", users_of_support(path)
    elif top == "tests":  # conftest.py, or what the tests beside it and above read
        folder = Path(path).parent
        if len(folder.parts) > 2 and not path.endswith("conftest.py"):
            folder = folder.parent
        yield f"below {folder}", [test for test in tests() if test.startswith(f"{folder}/")]
    else:
        yield f"at the path of {path}", mirrored(path) if top != "docs" else []
        yield f"naming {path}", sorted(naming(path) & set(tests()))


def rings_of_python(path):
    yield f"at the path of {path}", mirrored(path)
    support = {user for user in users(path) if user.startswith("tests/support/")}
    importing = {*users(path), *(test for each in support for test in users(each))} & set(tests())
    yield f"importing {path}", sorted(importing) if len(importing) <= MOST_IMPORTING else []
    near, done = [path], {path}
    for distance in range(1, 4):
        near = {user for each in near for user in users(each) if user.startswith("pyrannc/")} - done
        done |= near
        close = sorted(near, key=lambda user: (-common(user, path), user))
        yield f"{distance} imports from {path}", [test for user in close for test in mirrored(user)]
        if distance == 1:
            yield f"in the folder of {path}", beside(path)
            used = sorted(imported(path), key=lambda each: (-common(each, path), each))
            yield f"of what {path} imports", [test for each in used for test in mirrored(each)]


def rings_of_cpp(path):
    module = Path(path.replace("include/rannc/", "src/")).parts[1]
    if module == "bind":  # a file for each module
        module = Path(path).stem
    called = f"_C.{module}."
    calling = [file for file, text in texts().items() if called in text]
    yield f"at the path of {path}", mirrored(path)
    yield "", []
    yield f"in the folder of {path}", beside(path)
    yield f"of {module}", of_module(module)
    yield f"calling {called}", [file for file in calling if file in tests()]
    yield f"of what calls {called}", [test for file in calling for test in mirrored(file)]
    if module in CORE.keys() - {"comm"}:
        yield "of rannc-plan", [test for test in tests() if test.startswith("tests/python/")]
    for above, below in TORCH.items():
        if module in below:
            yield f"of {above}, which uses {module}", of_module(above)


def users_of_support(path):
    # The tests' second accelerator and NCCL are loaded by one file each.
    loaders = {"nccl": "tests/support/nccl.py", "accelerator": "tests/support/standin.py"}
    reached = {loaders.get(Path(path).parts[1], path)}
    while more := {user for each in reached for user in users(each)} - reached:
        reached |= more
    below = tuple(str(Path(each).parent) + "/" for each in reached if each.endswith("conftest.py"))
    found = {test for test in tests() if test in reached or test.startswith(below)}
    # What nobody is seen to use is used in a way that is not known here.
    return sorted(found | set(mirrored(path))) or list(tests())


@functools.cache
def mirrored(path: str) -> list[str]:
    """Tests at the path of a source, and those that are called like its folder."""
    inside = inside_of(path)
    folder = inside[:-1]
    names = [inside, (*inside, *inside[-1:]), folder, (*folder, *folder[-1:])]
    wanted = {"/".join([*name[:-1], f"test_{name[-1]}.py"]) for name in names if name}
    return [test for test in tests() if test.split("/", 2)[2] in wanted]


def mirrored_core(path: str) -> list[str]:
    """Tests of C++ for a source of the core: of its module, the nearest to its path first."""
    inside = inside_of(path)
    found = (ROOT / "tests/core" / inside[0]).rglob("*_test.cpp")
    names = sorted(str(test.relative_to(ROOT)) for test in found)
    own = "/".join(["tests", "core", *inside])
    return sorted(names, key=lambda name: (name != f"{own}_test.cpp", -common(name, own)))


def inside_of(path: str) -> tuple:
    """The names below the folder of all sources that the path is in."""
    inside = Path(path).with_suffix("").parts
    if inside[0] != "benchmarks":
        inside = inside[2 if inside[:2] == ("include", "rannc") else 1 :]
    return inside[:-1] if inside[-1:] == ("__init__",) else inside


def beside(path: str) -> list[str]:
    """Tests in the folder that mirrors a source's, in every tier."""
    folder = inside_of(path)[:-1]
    return [test for test in tests() if folder and Path(test).parts[2:-1] == folder]


def of_module(module: str) -> list[str]:
    return [test for test in tests() if Path(test).parts[2] == module]


def common(one: str, other: str) -> int:
    """How many names two paths begin with alike."""
    pairs = zip(Path(one).parts, Path(other).parts, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(Path(one).parts))


@functools.cache
def tests() -> dict[str, None]:
    """Every file of tests that pytest runs, but for those of the tree, in order."""
    found = [path for tier in USUAL for path in (ROOT / "tests" / tier).rglob("test_*.py")]
    return dict.fromkeys(sorted(str(path.relative_to(ROOT)) for path in found))


@functools.cache
def texts() -> dict[str, str]:
    """The text of each Python file of the package, the tests and their support."""
    paths = [path for top in ("pyrannc", "tests") for path in (ROOT / top).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def users(path: str) -> set[str]:
    """Python files that import ``path``, at their top or later; and those that start it as a job,
    which they do by its name."""
    found = _importing().get(path, set())
    is_job = path.startswith(("tests/support/jobs/", "tests/support/scripts/"))
    return found | naming(path) if is_job else found


@functools.cache
def _importing() -> dict[str, set[str]]:
    found = {}
    for path in texts():
        for used in imported(path):
            found.setdefault(used, set()).add(path)
    return found


@functools.cache
def imported(path: str) -> frozenset[str]:
    """The Python files that one imports."""
    package, text, found = Path(path).parts[:-1], texts()[path], set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                found.add(file_of([*module, alias.name]) or file_of(module))
        elif isinstance(node, ast.Import):
            found.update(file_of(alias.name.split(".")) for alias in node.names)
    # The code of ranks is a text within the test.
    for name in re.findall(r"^ +import ([\w.]+)", text, re.MULTILINE):
        found.add(file_of(name.split(".")))
    for module, names in re.findall(r"^ +from (\w[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        for name in names.split(", "):
            found.add(file_of([*module.split("."), name]) or file_of(module.split(".")))
    return frozenset(found - {None, path})


def file_of(module: list[str]) -> str | None:
    """The file of a dotted name, of the tree or of tests/support."""
    for top in ("", "tests/support"):
        base = Path(top, *module)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if str(path) in texts():
                return str(path)
    return None


def naming(path: str) -> set[str]:
    """Tests and their support in whose text the name of a file stands."""
    word = re.compile(rf"(?<![\w.-]){re.escape(Path(path).name)}(?![\w-])")
    return {
        other
        for other, text in texts().items()
        if other.startswith("tests/") and other not in (path, *LISTS) and word.search(text)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--into", type=Path)
    arguments = parser.parse_args()
    try:
        paths = changed_files(arguments.commit)
    except subprocess.CalledProcessError as error:
        sys.exit(f"CHANGED={arguments.commit}: {error.stderr.strip()}")
    found, core = affected(paths)
    width = max(map(len, found))
    print(*(f"{test:{width}}  {reason}" for test, reason in found.items()), sep="\n")
    if core:
        print("all tests of C++")
    if arguments.into:
        arguments.into.mkdir(parents=True, exist_ok=True)
        (arguments.into / "core").write_text("all\n" if core else "")
        for side in ROOM:
            lines = [f"{test}\n" for test in found if side_of(test) == side]
            (arguments.into / side).write_text("".join(lines))


if __name__ == "__main__":
    main()
