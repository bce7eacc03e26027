"""The project is about itself: no machine's paths, one style of file."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked(*suffixes):
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    return [ROOT / name for name in names if name.endswith(suffixes)]


def test_no_file_names_a_machine_path():
    path = re.compile(r"(?<![\w.])/(?:home|root|work)/")
    for file in tracked(".py", ".h", ".cpp", ".md", ".txt", ".toml", ".sh"):
        found = path.search(file.read_text())
        assert not found, f"{file}: {found.group()}"


def test_every_header_is_guarded_once():
    for file in tracked(".h"):
        assert file.read_text().startswith("#pragma once\n"), file
