"""A rank of ``rannc run``: sets what torch's launcher would have set, and becomes the script.

Run as a file, by a Python that reads no environment: it imports nothing but what follows.
"""

import os
import sys

_OF_MPIRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def variables(environment) -> dict:
    """Those that are missing, by what mpirun has set; of a process by itself without it."""
    found = {}
    for name, of_mpirun in _OF_MPIRUN.items():
        alone = "1" if name.endswith("SIZE") else "0"
        if name not in environment:
            found[name] = environment.get(of_mpirun, alone)
    return found


if __name__ == "__main__":
    os.environ.update(variables(os.environ))
    os.execv(sys.argv[1], sys.argv[1:])
