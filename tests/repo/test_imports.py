"""What importing costs: no torch before it is needed, no MPI before training, no output."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NO_TORCH = "import sys; sys.modules['torch'] = None\n"  # importing torch fails from here on


def python(code, *arguments, cwd=ROOT):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=cwd,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_importing_the_package_loads_neither_torch_nor_the_extension_and_prints_nothing(tmp_path):
    done = python(
        "import sys, pyrannc\n"
        "heavy = {'torch', 'mpi4py', 'numpy', 'pyrannc._C'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libmpi' not in maps and 'libtorch' not in maps\n",
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_plan_files_are_read_and_shown_without_torch(tmp_path):
    python(NO_TORCH + "import pyrannc.planner, pyrannc.cli; pyrannc.show_deployment, pyrannc.plan")

    stage = {"nodes": ["encoder.linear"], "ranks": [0, 1]}
    plan = {"format": "rannc-plan", "version": 1, "micro_batches": 2, "schedule": "fill_drain"}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan | {"stages": [stage]}))
    shown = python(NO_TORCH + "from pyrannc.cli import main; main()", "show", str(path))
    assert "encoder.linear" in shown.stdout


def test_loading_everything_starts_no_mpi_and_prints_nothing():
    done = python(
        "import ctypes, pyrannc\n"
        "from pyrannc import _C, RaNNCModule\n"
        "if _C.comm.mpi_available():\n"
        "    lines = [line.split() for line in open('/proc/self/maps') if '/libmpi.so' in line]\n"
        "    flag = ctypes.c_int(-1)\n"
        "    ctypes.CDLL(lines[0][-1]).MPI_Initialized(ctypes.byref(flag))\n"
        "    assert flag.value == 0\n"
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_no_name_of_the_package_is_also_the_name_of_a_module():
    # Importing the module would put it in the place of the name: from its second use on.
    modules = {path.stem for path in (ROOT / "pyrannc").iterdir()}
    names = python("import pyrannc; print(*pyrannc.__all__)").stdout.split()
    assert not set(names) & (modules - {"__init__"})
