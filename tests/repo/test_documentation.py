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


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_of_the_readme_run(code, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script], check=True, timeout=120, env=environment)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()
            if line.startswith("$ rannc ")]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_rannc_commands_of_the_readme_run(command, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RANNC_SAVE_DEPLOYMENT": "true",
        "RANNC_DEPLOYMENT_FILE": str(ROOT / "build" / "readme_plan.json"),
    }
    arguments = command.replace("plan.json", str(ROOT / "build" / "readme_plan.json")).split()[1:]
    done = subprocess.run(
        [sys.executable, "-c", "from pyrannc.cli import main; main()", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=200, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_names_the_two_commands():
    assert "make demo" in README and "make test" in README


MODULES = ["module", "config", "plan", "native", "deploy", "state"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    import torch

    import pyrannc

    module = importlib.import_module(f"pyrannc.{name}")
    names = {"torch": torch, "pyrannc": pyrannc}
    result = doctest.testmod(module, extraglobs=names)
    assert result.failed == 0


def test_docstrings_have_examples_where_users_look():
    from pyrannc import config, module

    finder = doctest.DocTestFinder()
    for where, name in ((module, "RaNNCModule"), (config, "Config")):
        assert any(test.examples for test in finder.find(getattr(where, name))), name
