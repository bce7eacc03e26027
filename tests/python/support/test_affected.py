"""Which tests run for which change."""

import subprocess
import sys

import affected
import pytest


def test_a_source_has_the_tests_at_its_path_and_those_of_the_tree():
    found, core = affected.affected(["pyrannc/trial/choose.py"])
    assert found["tests/torch/trial/test_choose.py"] == "at the path of pyrannc/trial/choose.py"
    assert found["tests/repo"] == "always"
    assert set(affected.ALWAYS) <= found.keys()
    assert not core


def test_a_test_that_is_called_like_a_folder_is_of_its_files():
    assert "tests/torch/capture/test_exported.py" in affected.mirrored(
        "pyrannc/capture/exported/rows.py"
    )
    assert affected.mirrored("pyrannc/original/__init__.py") == [
        "tests/dist/original/test_original.py",
        "tests/torch/original/test_original.py",
    ]


def test_files_that_import_a_source_bring_their_tests():
    found, _ = affected.affected(["pyrannc/capture/hook_probes.py"])
    assert found["tests/torch/hooks/test_seen_copies.py"].startswith("1 imports from")


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("tests/support/jobs/set_order.py", "tests/dist/test_set_order.py"),  # started by its name
        (
            "tests/support/two_layers.py",
            "tests/dist/optimizer/test_grad_scaler.py",
        ),  # in the code of ranks
        ("tests/support/needs_tracer.py", "tests/torch/trial/test_choose.py"),  # by conftest.py
        ("tests/support/tsan.supp", "tests/dist/test_soak.py"),  # by nobody that can be seen
        ("tests/accelerator/machine/queue.cpp", "tests/torch/accelerator/machine/test_queue.py"),
        ("tests/nccl/room.cpp", "tests/torch/accelerator/test_nccl_library.py"),
        ("tests/torch/capture/graphs/bert.txt", "tests/torch/capture/test_golden_graphs.py"),
        ("tests/dist/conftest.py", "tests/dist/job/test_devices.py"),
        ("benchmarks/planner/arithmetic.py", "tests/python/benchmarks/planner/test_arithmetic.py"),
        ("examples/train_gpt.py", "tests/dist/test_examples.py"),
        ("src/bind/plan.cpp", "tests/torch/runtime/test_schedules.py"),  # calls _C.plan
        ("src/frontend/convert.cpp", "tests/torch/capture/test_model.py"),  # of what calls it
    ],
)
def test_what_has_no_test_at_its_path_has_those_that_use_it(path, test):
    assert test in affected.affected([path])[0]


def test_a_change_of_tests_alone_runs_these():
    test = "tests/dist/test_equality.py"  # all of it, not the part that is always there
    assert list(affected.affected([test])[0]) == [test, "tests/repo"]


def test_a_page_runs_the_tests_of_the_tree():
    assert affected.affected(["docs/planner.md", "README.md"]) == ({"tests/repo": "always"}, False)


@pytest.mark.parametrize(
    "path", ["Makefile", "pyproject.toml", "tests/conftest.py", "third_party/torch.txt", "new/a.py"]
)
def test_a_file_of_an_unknown_kind_runs_everything(path):
    found, core = affected.affected(["docs/planner.md", path])
    assert list(found) == [*affected.EVERYTHING]
    assert core


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        ("src/plan/rows.cpp", True),
        ("include/rannc/plan/plan.h", True),
        ("tests/core/plan/rows_test.cpp", True),
        ("tests/fuzz/input.h", True),
        ("src/runtime/executor.cpp", False),
        ("include/rannc/ops/dtype.h", False),
        ("src/bind/plan.cpp", False),
        ("pyrannc/planner.py", False),
    ],
)
def test_tests_of_cpp_run_for_the_core(path, runs):
    assert affected.affected([path])[1] == runs


def test_outer_rings_have_so_many_seconds():
    # Half of the package imports it.
    found, _ = affected.affected(["pyrannc/errors.py"])
    for side, room in affected.ROOM.items():
        outer = [
            test
            for test, reason in found.items()
            if affected.side_of(test) == side
            and reason.split()[0] not in ("always", "at", "importing")
        ]
        assert 0 < sum(map(affected.seconds_of, outer)) <= room


def test_every_source_has_tests_beside_those_that_always_run():
    sources = [path for path in affected.texts() if path.startswith("pyrannc/")]
    sources = [path for path in sources if not path.endswith(("__init__.py", "_build_info.py"))]
    without = [
        path
        for path in sources
        if all(reason == "always" for reason in affected.affected([path])[0].values())
    ]
    assert without == []


def test_seconds_are_those_of_files_that_exist():
    assert affected.SECONDS.keys() <= affected.tests().keys()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with a file at HEAD."""
    monkeypatch.setattr(affected, "ROOT", tmp_path)
    (tmp_path / "kept.py").write_text("")
    (tmp_path / "gone.py").write_text("")
    (tmp_path / ".gitignore").write_text("*.log\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_change_is_what_differs_is_gone_or_is_new(tree):
    assert affected.changed_files("HEAD") == []
    (tree / "gone.py").unlink()
    (tree / "a new.py").write_text("")
    (tree / "left.log").write_text("")
    assert affected.changed_files("HEAD") == ["a new.py", "gone.py"]


def test_an_unknown_commit_is_an_error_of_one_line(tree, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["affected.py", "no-such-commit"])
    with pytest.raises(SystemExit, match=r"CHANGED=no-such-commit: .*no-such-commit"):
        affected.main()


def test_the_lists_for_make_are_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(affected, "changed_files", lambda commit: ["src/plan/rows.cpp"])
    monkeypatch.setattr(sys, "argv", ["affected.py", "HEAD", "--into", str(tmp_path / "lists")])
    affected.main()
    written = {path.name: path.read_text().split() for path in (tmp_path / "lists").iterdir()}
    assert written["core"] == ["all"]
    assert "tests/repo" in written["one_process"]
    assert set(affected.ALWAYS) <= set(written["ranks"])
    assert "tests/repo" in capsys.readouterr().out
