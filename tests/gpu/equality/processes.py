"""Cases of the equality suite, deterministic and in whole float32; they are the arguments.

With TEST_NCCL=1 over NCCL, although all ranks compute on one device: NCCL takes them for ranks of
different hosts, and RaNNC for ranks with a device each. Nobody promises that this works.
"""

import os
import sys
from pathlib import Path

import device
import nccl

from pyrannc.job import device_facts

sys.path.append(str(Path(__file__).resolve().parents[2] / "support" / "jobs"))
import equality

if __name__ == "__main__":
    device.make_deterministic()
    if os.environ.get("TEST_NCCL"):
        rank = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["NCCL_HOSTID"] = rank
        if device.NAME == "standin":
            os.environ["RANNC_NCCL_LIBRARY"] = str(nccl.FILE)
        device_facts.uuid = lambda _: f"of rank {rank}"
    equality.main(sys.argv[1:])
