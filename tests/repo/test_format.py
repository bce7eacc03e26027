"""Layout and lint, as `make check` says them; the compiler's warnings are left to it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def complaints(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return "" if done.returncode == 0 else f"{done.stdout[-5000:]}{done.stderr[-5000:]}"


def clang_format():
    """Only the release whose layout is the repository's: others break lines elsewhere."""
    if shutil.which("clang-format") is None:
        return "clang-format was not found"
    said = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)", said).group(1)
    return None if found == "14" else f"clang-format is of release {found}, not 14"


@pytest.mark.skipif(bool(clang_format()), reason=str(clang_format()))
def test_cpp_is_laid_out_by_clang_format():
    names = subprocess.run(
        ["git", "ls-files", "*.h", "*.cpp"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    files = [name for name in names if (ROOT / name).exists()]
    assert not complaints("clang-format", "--dry-run", "--Werror", *files)


def test_python_is_laid_out_and_has_no_lint():
    assert not complaints(sys.executable, "-m", "ruff", "format", "--check", ".")
    assert not complaints(sys.executable, "-m", "ruff", "check", ".")


def test_prose_has_lines_of_at_most_120_columns():
    """Tables, code and links by themselves may be longer."""
    long = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"^ *```.*?^ *```", keep_lines, page.read_text(), flags=re.M | re.S)
        long += [
            f"{page.name}:{number}"
            for number, line in enumerate(text.splitlines(), start=1)
            if len(line) > 120 and not re.match(r" *(\||\[[^]]*\]\()", line)
        ]
    assert not long


def keep_lines(code):
    return "\n" * code.group().count("\n")
