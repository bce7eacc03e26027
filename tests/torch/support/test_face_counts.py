"""How much Python a step goes through, and how many places do one thing: no more than now."""

import collections
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import face_counts
import pytest


def test_a_later_forward_and_a_step_make_few_calls():
    """It was 268 and 474 calls, in 41 and 50 files. In a process of its own: other models of this
    one look at each step, too."""
    done = subprocess.run(
        [sys.executable, "-c", "import face_counts as c; print(c.calls_of_four_linears())"],
        cwd=Path(face_counts.__file__).parent, capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": str(face_counts.PACKAGE.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = eval(done.stdout, {"Counter": collections.Counter})
    for what, most in (("forward", 125), ("step", 215)):
        found = calls[what]
        often = "\n".join(f"{count} x {name}" for name, count in found.most_common(12))
        assert found.total() <= most, f"a later {what} makes {found.total()} calls:\n{often}"


def test_one_place_registers_hooks_on_the_steps_of_optimizers():
    assert face_counts.hook_owners() == {"job/process.py": 1}


def test_no_tensor_is_sent_by_hand():
    """It was 13 places; layouts say who has what, and state/mover.py sends it."""
    assert not face_counts.broadcast_sites()


@pytest.fixture
def package(tmp_path):
    (tmp_path / "one.py").write_text(
        textwrap.dedent('''
            """A docstring
            of two lines."""

            from pyrannc.state import named_tensors  # two lines of code so far
            TEXT = """this
            counts"""


            def send(comm, tensor, optimizer):
                """A docstring."""
                named_tensors.broadcast(comm, tensor, 0, [0, 1])
                # A comment.
                comm.broadcast(b"", 0)
                return optimizer.register_step_pre_hook(print)
        ''')
    )
    return tmp_path


def test_counts_are_of_code(package):
    assert face_counts.lines(package) == 7
    assert face_counts.hook_owners(package) == {"one.py": 1}
    assert face_counts.broadcast_sites(package) == {"one.py": 1}


def test_calls_are_those_of_the_package(tmp_path):
    code = compile(
        "def inner(): len([1])\ndef outer(): inner(), inner()", tmp_path / "a.py", "exec"
    )
    names = {}
    exec(code, names)
    found = face_counts.calls_inside(names["outer"], tmp_path)
    assert found == {("a.py", "outer"): 1, ("a.py", "inner"): 2}
