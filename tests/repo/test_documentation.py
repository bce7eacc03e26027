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


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_commands(commands, folder):
    """Commands of ``rannc``, one after the other, in ``folder`` with the examples beside it; before
    the word ``rannc`` stand variables."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for command in commands:
        *variables, arguments = re.split(r"\s*\brannc +", command, maxsplit=1)
        given = dict(each.split("=") for each in "".join(variables).split())
        done = subprocess.run(
            [sys.executable, "-c", "from pyrannc.cli import main; main()", *arguments.split()],
            cwd=folder, capture_output=True, text=True, timeout=300,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | given,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def run_python(scripts, folder):
    script = folder / "blocks.py"
    script.write_text("\n".join(scripts))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script], check=True, timeout=300, env=environment, cwd=folder)


@pytest.mark.all
def test_the_site_is_made_without_a_warning():
    """Links from page to page are checked by Sphinx; `make docs` makes an error of each warning."""
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (ROOT / "build-docs" / "index.html").exists()


@pytest.mark.all
def test_the_quick_start_works_as_it_stands(tmp_path):
    text = (ROOT / "docs" / "quick-start.md").read_text()
    build, train = blocks("python", text)
    assert build.startswith("# mine.py\n")
    (tmp_path / "mine.py").write_text(build)
    run_commands(re.findall(r"^\$ (.*)$", text, re.MULTILINE), tmp_path)
    assert (tmp_path / "plan.html").exists()
    run_python([train], tmp_path)


@pytest.mark.all
@pytest.mark.parametrize("page", ["how-to", "coming-from-others"])
def test_the_code_of_a_page_runs(page, tmp_path):
    run_python(blocks("python", (ROOT / "docs" / f"{page}.md").read_text()), tmp_path)


def test_the_pictures_of_concepts_are_what_its_commands_draw(tmp_path):
    """A picture stands behind the commands that draw it."""
    text = (ROOT / "docs" / "concepts.md").read_text()
    pairs = re.findall(r"```console\n(.*?)```\n\n```\n(.*?)\n```", text, re.DOTALL)
    assert len(pairs) == 3
    for commands, picture in pairs:
        for command in commands.strip().splitlines():
            arguments = command.replace("plan.json", str(tmp_path / "plan.json")).split()
            done = subprocess.run(
                [ROOT / "pyrannc" / "rannc-plan", *arguments[2:]],
                cwd=ROOT / "examples" / "planner", capture_output=True, text=True, timeout=100,
                check=True, env=os.environ | {"COLUMNS": "80"},
            )  # fmt: skip
        assert picture in done.stdout, done.stdout


def test_python_blocks_of_the_readme_run(tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(blocks("python")))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script], check=True, timeout=300, env=environment)


def test_rannc_commands_of_the_readme_run_in_their_order(tmp_path):
    """As they stand: each finds the files that those before it have written."""
    commands = re.findall(r"^\$ (.*)$", "".join(blocks("console")), re.MULTILINE)
    assert {"run", "show", "doctor"} <= {re.search("rannc (\\w+)", each)[1] for each in commands}
    run_commands(commands, tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_files_that_a_page_names_are_there(page):
    """And a name that is said to be in one of them stands there."""
    if page.stem == "coming-from-others":
        return  # names files of others
    text = page.read_text()
    folders = "src|include|pyrannc|tests|benchmarks|examples|docs"
    for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`", text):
        assert (ROOT / name).exists(), name
    for word, name in re.findall(rf"`(\w+)(?:\(\))?`\s+in\s+`((?:{folders})/[\w/-]+\.\w+)`", text):
        assert re.search(rf"\b{word}\b", (ROOT / name).read_text()), f"{word} in {name}"


def test_commands_that_pages_and_messages_name_exist():
    from pyrannc.cli import app
    from pyrannc.original.settings import REPLACED

    known = {each.name or each.callback.__name__ for each in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / f"{n}.md" for n in ("README", "CHANGELOG"))]
    texts = {page.name: page.read_text() for page in pages} | {
        "REPLACED": "\n".join(REPLACED.values())
    }
    for name, text in texts.items():
        begins = r"(?:`|^\$ |^ {4}|the command )(?:[A-Z_]+=\S+ )*"
        named = set(re.findall(rf"{begins}rannc ([a-z]+)", text, re.MULTILINE))
        assert named <= known, f"{name}: {named - known}"


def test_the_readme_names_the_two_commands():
    assert "make demo" in README and "make test" in README


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "pyrannc").rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    import torch

    import pyrannc

    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)  # some write files
    names = {"torch": torch, "pyrannc": pyrannc}
    result = doctest.testmod(module, extraglobs=names)
    assert result.attempted and not result.failed


def test_docstrings_have_examples_where_users_look():
    from pyrannc import config, module

    finder = doctest.DocTestFinder()
    for where, name in ((module, "RaNNCModule"), (config, "Config")):
        assert any(test.examples for test in finder.find(getattr(where, name))), name


def test_words_that_users_search_for_lead_somewhere():
    """Each stands in the table of the how-to page, beside a link that leads somewhere."""
    page = ROOT / "docs" / "how-to.md"
    rows = re.findall(r"^\| (.*) \| (\[.*) \|$", page.read_text().split("\n## ")[0], re.MULTILINE)
    known = {word for words, _ in rows for word in words.split(", ")}
    assert known >= {
        "OOM", "multi-node", "Slurm", "wandb", "TensorBoard", "batch size", "gradient accumulation",
        "activation checkpointing", "freeze", "resume", "conda", "Docker", "validation",
    }  # fmt: skip
    for target in (target for _, links in rows for target in re.findall(r"\]\((.*?)\)", links)):
        name, _, heading = target.partition("#")
        text = (page.parent / name).read_text() if name else page.read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
        assert not heading or heading in anchors, target
