"""The test of a file is found by its path: tests/TIER/FOLDER/test_FILE.py is of FOLDER/FILE."""

import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "pyrannc", ROOT / "src", ROOT / "include" / "rannc", ROOT / "tests", ROOT]
# What no single file or folder does: the whole, or how several parts go together.
OF_THE_WHOLE = {
    "core/ir/passes",
    "core/partition/brute_force",
    "core/predict/step",
    "dist/bad_input",
    "dist/device_equality",
    "dist/draws",
    "dist/equality",
    "dist/failure",
    "dist/habits",
    "dist/loops",
    "dist/memory_limit",
    "dist/outside_losses",
    "dist/tensor_parallel",
    "dist/tensor_parallel_models",
    "dist/scripts",
    "dist/set_order",
    "dist/soak",
    "torch/accelerator/costs",
    "torch/accelerator/nccl",
    "torch/accelerator/nccl_library",
    "torch/accelerator/one_rank",
    "torch/accelerator/shards",
    "torch/accelerator/slow_links",
    "torch/accelerator/staged",
    "torch/capture/golden_graphs",
    "torch/capture/guesses",
    "torch/garbage",
    "torch/runtime/schedules",
}


def found():
    """``tier/folder/name`` of each file of tests; those of tests/repo are of the whole tree."""
    for tier in ("core", "python", "torch", "dist"):
        folder = ROOT / "tests" / tier
        for path in [*folder.rglob("test_*.py"), *folder.rglob("*_test.cpp")]:
            name = path.stem.removeprefix("test_").removesuffix("_test")
            yield tier, path.parent.relative_to(folder) / name


def has_source(name):
    # A test that is called like its folder is of the folder.
    names = [name, name.parent] if name.name == name.parent.name else [name]
    return any(
        (source / name).is_dir()
        or any((source / name).with_suffix(suffix).is_file() for suffix in (".py", ".h", ".cpp"))
        for source in SOURCES
        for name in names
    )


def test_tests_lie_where_what_they_test_does():
    lost = {f"{tier}/{name}" for tier, name in found() if not has_source(name)}
    assert lost == OF_THE_WHOLE, (
        f"no source is called so: {sorted(lost - OF_THE_WHOLE)}; "
        f"no longer tests of the whole: {sorted(OF_THE_WHOLE - lost)}"
    )


def test_every_test_file_is_one_that_pytest_or_cmake_finds():
    for tier in ("repo", "python", "torch", "dist"):
        for path in (ROOT / "tests" / tier).rglob("*.py"):
            assert path.name == "conftest.py" or path.name.startswith("test_"), (
                f"{path}: what tests share lies in tests/support"
            )


def test_pytest_goes_into_every_folder_of_tests(request):
    # Its own list of folders to leave out has `dist` and `build` in it.
    left_out = request.config.getini("norecursedirs")
    folders = {path.name for path in (ROOT / "tests").rglob("*") if path.is_dir()}
    missed = {
        name
        for name in folders - {"__pycache__"}
        if any(fnmatch.fnmatch(name, pattern) for pattern in left_out)
    }
    assert not missed, missed
