"""One rank of test_memory_limit.py: a limit just above what a step holds."""

import json

import torch
from torch import nn

import pyrannc
from pyrannc import launch

MIB = 2**20


class Chain(nn.Module):
    """Wide values go from layer to layer, and hence between stages."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def train(**settings):
    """What a step is predicted to hold, by the runtime's figure and by the account of section 7 of
    docs/planner-files.md, and what is measured, in MiB."""
    torch.manual_seed(0)
    model = pyrannc.RaNNCModule(
        Chain(),
        config=pyrannc.Config(
            partition_num=4,
            replica_nums=[1, 1, 1, 1],
            pipeline_num=8,
            schedule="interleaved",
            recompute="never",
            mem_margin=0,
            calibrate=False,
            self_check=False,
            **settings,
        ),
    )
    batch = torch.full((2048, 256), 0.01)
    model(batch).backward()
    model.zero_grad()
    with pyrannc.measure(model) as measured:
        for _ in range(3):
            model(batch).backward()
            model.zero_grad()
    return {
        "step_mib": max(model.plan.step.peak_bytes) / MIB,
        "account_mib": max(stage.predicted.peak_bytes for stage in model.plan.stages) / MIB,
        "measured_mib": max(measured.peak_mib),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    free = train()
    limit_mib = 1.01 * free["step_mib"]
    limited = train(mem_limit_gb=limit_mib / 1024)
    if launch.get_rank() == 0:
        print(json.dumps({"limit_mib": limit_mib, "free": free, "limited": limited}))
