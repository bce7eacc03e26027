"""Layers that two ranks compute together on one device, in float64, against one process on the CPU.

With TEST_NCCL=1 over NCCL, as in processes.py, else over pinned memory.
"""

import os

import device
import nccl
from report import Report

from pyrannc import launch
from pyrannc.job import device_facts

CASES = {
    "a GPT": {},
    "recompute, 2 micro-batches": {"checkpointing": True, "pipeline_num": 2},
}


def main():
    launch.world()
    place = device.start()
    over = {"device_transport": "staged", "share_device": True, "calibrate": False}
    if os.environ.get("TEST_NCCL"):
        rank = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["NCCL_HOSTID"] = rank
        device_facts.uuid = lambda _: f"of rank {rank}"
        library = str(nccl.FILE) if device.NAME == "standin" else ""
        over = {"device_transport": "nccl", "nccl_library": library, "calibrate": False}
    import groups  # it asks for the number of ranks

    groups.compute_on(place, **over)
    report = Report(shown=groups.rank == 0)
    for name, settings in CASES.items():
        with report.case(name):
            batches = groups.batches(groups.tokens, 4)
            groups.trains_alike(groups.GPT, batches, tensor_parallel=groups.size, **settings)
            report.figures["cases"] = report.figures.get("cases", 0) + 1


if __name__ == "__main__":
    main()
