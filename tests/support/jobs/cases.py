"""One rank that runs the code of several tests, one after the other, for tests/dist/conftest.py.

Each rank writes what a case prints, and its traceback, into files of its own. A case that raises
ends the job, because the others may wait for this rank: the cases behind it do not run.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path

import torch

from pyrannc import launch


def run(code, output):
    """What the case writes by print(), by C++ and into file descriptors goes to the files."""
    kept = [os.dup(1), os.dup(2)]
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{output}.{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        exec(compile(code, str(output), "exec"), {"__name__": "__main__"})
        Path(f"{output}.done").touch()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def main(folder):
    for number, code in enumerate(json.loads((folder / "cases.json").read_text())):
        torch.manual_seed(0)
        run(code, folder / f"{number}-{launch.get_rank()}")
        gc.collect()  # a model of the case before holds memory until here at most


if __name__ == "__main__":
    main(Path(sys.argv[1]))
