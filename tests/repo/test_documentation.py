"""README's commands and Python blocks run, and so do the examples in docstrings."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_of_the_readme_run(tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks("python")))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script], check=True, timeout=300, env=environment)


def test_rannc_commands_of_the_readme_run_in_their_order(tmp_path):
    """The first one saves the plan that a later one shows."""
    commands = re.findall(r"^\$ rannc (.*)$", "".join(blocks("console")), re.MULTILINE)
    assert {command.split()[0] for command in commands} >= {"run", "show", "doctor"}
    plan = tmp_path / "plan.json"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RANNC_SAVE_DEPLOYMENT": "true",
        "RANNC_DEPLOYMENT_FILE": str(plan),
    }
    for command in commands:
        arguments = command.replace("plan.json", str(plan)).split()
        done = subprocess.run(
            [sys.executable, "-c", "from pyrannc.cli import main; main()", *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, f"rannc {command}\n{done.stdout}{done.stderr}"


def test_the_readme_names_the_two_commands():
    assert "make demo" in README and "make test" in README


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "pyrannc").rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    import torch

    import pyrannc

    module = importlib.import_module(name)
    names = {"torch": torch, "pyrannc": pyrannc}
    result = doctest.testmod(module, extraglobs=names)
    assert result.attempted and not result.failed


def test_docstrings_have_examples_where_users_look():
    from pyrannc import config, module

    finder = doctest.DocTestFinder()
    for where, name in ((module, "RaNNCModule"), (config, "Config")):
        assert any(test.examples for test in finder.find(getattr(where, name))), name
