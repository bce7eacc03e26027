"""Scripts that users have, each with the one added line, on the ranks that mpirun started.

Each rank reports for each script the losses that it printed, or the first line of
the error that ended it and the line of the script where it was raised.
"""

import ast
import contextlib
import gc
import io
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import reports
import torch
from accelerate.state import AcceleratorState

from pyrannc import RaNNCError, launch

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))


def run(name):
    """The report of one script."""
    what = ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text()))
    output, report = io.StringIO(), {"script": name, "what": what, "error": "", "line": 0}
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = [f"{name}.py", folder]
        try:
            with contextlib.redirect_stdout(output):
                runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        except RaNNCError as error:
            places = [
                each.lineno
                for each in traceback.extract_tb(error.__traceback__)
                if each.filename == str(SCRIPTS / f"{name}.py")
            ]
            report |= {"error": str(error).splitlines()[0], "line": places[-1]}
    losses = [line.split()[1] for line in output.getvalue().splitlines() if "loss " in line]
    return report | {"losses": [float(loss) for loss in losses]}


def main(names):
    for name in names:
        report = run(name)
        AcceleratorState._reset_state(reset_partial_state=True)  # it keeps the process group
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        gc.collect()
        reports.add(launch.get_rank(), report)


if __name__ == "__main__":
    main(sys.argv[1:])
