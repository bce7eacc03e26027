"""Steps FIRST to LAST of a training run whose checkpoints are in FOLDER, on any number of ranks.

Rank 0 prints the losses as JSON. The batch of all ranks is the same in every job.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

import pyrannc

ROWS = 12


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids, labels):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x).tanh(), 0.2, self.training)
        return nn.functional.cross_entropy(self.head(self.norm(x)), labels)


def main(folder, first, last):
    torch.manual_seed(1)
    model = Model()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 7], gamma=0.3)
    ranks, rank = pyrannc.get_world_size(), pyrannc.get_rank()
    stages = {1: [1], 2: [1, 1], 3: [1, 2], 4: [1, 2, 1]}[ranks]
    config = pyrannc.Config(
        partition_num=len(stages), replica_nums=stages, pipeline_num=3 if ranks > 1 else 1,
        deterministic_dropout=True, calibrate=False, self_check=False,
    )  # fmt: skip
    model = pyrannc.RaNNCModule(model, optimizer, config)
    if first:
        extra = pyrannc.load(folder, model, optimizer, scheduler=scheduler)
        assert extra == {"step": first, "sizes": (1, 2)}, extra
    losses = []
    for step in range(first, last):
        torch.manual_seed(1000 + step)
        ids, labels = torch.randint(0, 32, (2, ROWS))
        mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
        optimizer.zero_grad()
        loss = model(ids[mine], labels[mine])
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    pyrannc.save(
        folder, model, optimizer, scheduler=scheduler, extra={"step": last, "sizes": (1, 2)}
    )
    if rank == 0:
        (Path(folder) / f"losses-{first}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
