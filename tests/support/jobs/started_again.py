"""A run that is started again after a rank has been killed, and again after an error.

    started_again.py FOLDER

Goes on from the last checkpoint in FOLDER, and leaves there in `losses.json` the loss of each step,
and in which start it was computed.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import pyrannc

STEPS, ROWS = 9, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x):
        return self.layers(x).square().mean()


folder = Path(sys.argv[1])
start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
pyrannc.init()
rank, size = pyrannc.get_rank(), pyrannc.get_world_size()

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
config = pyrannc.Config(partition_num=size, pipeline_num=2, calibrate=False)
model = pyrannc.RaNNCModule(model, optimizer, config)

losses = []
if (folder / "checkpoint").exists():
    losses = pyrannc.load(folder / "checkpoint", model, optimizer, scheduler=scheduler)["losses"]
for step in range(len(losses), STEPS):
    batch = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    loss = model(batch.chunk(size)[rank])
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append([loss.item(), start])
    if step % 2 == 1:
        extra = {"losses": losses}
        pyrannc.save(folder / "checkpoint", model, optimizer, scheduler=scheduler, extra=extra)
    if size > 1 and (step, start, rank) == (4, 0, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if size > 1 and (step, start, rank) == (6, 1, 0):
        raise OSError("the disk of this host has gone")
if rank == 0:
    (folder / "losses.json").write_text(json.dumps(losses))
