"""One rank of tests/dist/plan/test_schedule.py: activations of four stages under the schedules."""

import json

import torch
from torch import nn

import pyrannc
from pyrannc import launch

WIDTH, ROWS = 1024, 512  # of a rank; an activation of a micro-batch is 1 MiB
STEPS = 3


class Chain(nn.Module):
    """Nearly all of its memory is activations; four equal stages."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(WIDTH) for _ in range(64))

    def forward(self, x):
        for scale in self.scales:
            x = torch.tanh(x * scale)
        return x.square().mean()


def peaks(schedule):
    """MiB of each stage beyond its parameters and their gradients: in the step with the least, and
    in that with the most. Messages of the step before, 8 MiB each way, may be freed in a step,
    which then seems to take less."""
    model = pyrannc.RaNNCModule(
        Chain(),
        config=pyrannc.Config(
            partition_num=4,
            replica_nums=[1, 1, 1, 1],
            pipeline_num=8,
            schedule=schedule,
            recompute="never",
            self_check=False,
            calibrate=False,
        ),
    )
    batch = torch.full((ROWS, WIDTH), 0.01)
    model(batch).backward()
    model.zero_grad()
    steps = []
    for _ in range(STEPS):
        with pyrannc.measure(model) as measured:
            model(batch).backward()
        model.zero_grad()
        steps.append(measured.peak_mib)
    held = [2 * stage.predicted.param_bytes / 2**20 for stage in model.plan.stages]
    stages = list(zip(*steps, held, strict=True))
    return [[choose(peaks) - state for *peaks, state in stages] for choose in (min, max)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {schedule: peaks(schedule) for schedule in ("gpipe", "1f1b")}
    if launch.get_rank() == 0:
        print(json.dumps(found))
