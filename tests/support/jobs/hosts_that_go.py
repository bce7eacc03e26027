"""A run on hosts that go: goes on from its last checkpoint, with whatever ranks there are.

    hosts_that_go.py FOLDER STEPS

Leaves there in `losses.json` the loss of each step, and on how many ranks it was computed; how many
steps are done stands in `steps`, and in `told-RANK` after which one a rank was told to end.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import pyrannc

ROWS = 8

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x):
        return self.layers(x).square().mean()


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
config = pyrannc.Config(partition_num=size, pipeline_num=2, calibrate=False)
model = pyrannc.RaNNCModule(model, optimizer, config)
checkpoint, losses = folder / "checkpoint", []


def save():
    pyrannc.save(checkpoint, model, optimizer, extra={"losses": losses})


def leave():
    save()
    (folder / f"told-{rank}").write_text(str(len(losses)))
    time.sleep(5)
    sys.exit(75)


pyrannc.on_preemption(leave)
if (checkpoint / "rannc.json").exists():
    losses = pyrannc.load(checkpoint, model, optimizer)["losses"]
for step in range(len(losses), steps):
    batch = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    loss = model(batch.chunk(size)[rank])
    loss.backward()
    optimizer.step()
    losses.append([loss.item(), size])
    if step % 3 == 2:
        save()
    if rank == 0:
        (folder / "steps").write_text(str(step + 1))
    if size > 1:
        time.sleep(0.3)
if rank == 0:
    (folder / "losses.json").write_text(json.dumps(losses))
