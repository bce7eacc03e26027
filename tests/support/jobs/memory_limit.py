"""One rank of test_memory_limit.py: a model that does not fit one rank, and the bytes it takes."""

import json
import sys

import torch
from torch import nn

import pyrannc
from pyrannc import _C, launch

MIB = 2**20


def main(limit_mib):
    comm = launch.world()
    torch.set_num_threads(1)
    with _C.runtime.MemoryRecorder() as recorder:
        torch.manual_seed(0)
        # 8 x (512 x 512 + 512) float32 = 8.0 MiB; with gradients and AdamW's two states 32.1 MiB.
        model = nn.Sequential(
            *(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU()))
        )
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        wrapped = pyrannc.RaNNCModule(
            model, optimizer, pyrannc.Config(mem_limit_gb=limit_mib / 1024)
        )
        del model
        data = torch.Generator().manual_seed(comm.rank)

        def step():
            optimizer.zero_grad()
            wrapped(torch.randn(32, 512, generator=data)).square().mean().backward()
            optimizer.step()

        step()
        recorder.reset_peak()
        for _ in range(3):
            step()
        local_bytes = sum(parameter.nbytes for parameter in wrapped.parameters(from_global=False))
        report = {
            "rank": comm.rank,
            "peak_mib": recorder.peak_bytes / MIB,
            "local_parameter_bytes": local_bytes,
            "stages": [
                {"ranks": stage.ranks, "parameter_bytes": stage.predicted.param_bytes,
                 "peak_mib": stage.predicted.peak_bytes / MIB}
                for stage in wrapped.plan.stages
            ],
        }  # fmt: skip
        # After the last step: parameters, gradients and two states; nothing of other stages.
        report["held_mib"] = recorder.current_bytes / MIB
    for item in comm.all_gather(json.dumps(report).encode()):
        if comm.rank == 0:
            print(item.decode(), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
