"""Writes the signatures of the C++ extension, pyrannc/_C/*.pyi: what editors and reviews see.

Python imports the extension and not this folder: a folder without __init__.py comes last.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "pyrannc" / "_C"
# The extension needs torch's libraries, which nobody has loaded in a fresh process.
GENERATE = "import sys, torch, pybind11_stubgen as s; s.main(['pyrannc._C', '-o', sys.argv[1]])"


def generate() -> dict[str, str]:
    """The stub of each submodule by the name of its file."""
    with tempfile.TemporaryDirectory() as folder:
        # In the root, where this very tree's `pyrannc` is found first.
        done = subprocess.run(
            [sys.executable, "-c", GENERATE, folder], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        files = sorted(Path(folder, "pyrannc", "_C").glob("*.pyi"))
        return {file.name: file.read_text() for file in files}


def committed() -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(COMMITTED.glob("*.pyi"))}


def accept() -> None:
    stubs = generate()
    COMMITTED.mkdir(exist_ok=True)
    for name in committed().keys() - stubs.keys():
        (COMMITTED / name).unlink()
    for name, text in stubs.items():
        (COMMITTED / name).write_text(text)


if __name__ == "__main__":
    accept()
