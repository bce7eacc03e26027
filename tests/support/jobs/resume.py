"""Steps FIRST to LAST of a training run whose checkpoints are in FOLDER, on any number of ranks.

Rank 0 writes the losses as JSON. With "zero" the replicas share the optimizer's state. The batch of
all ranks is the same in every job.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import pyrannc
from pyrannc.capture.model import capture

sys.path.append(str(Path(__file__).parents[1]))
import borders

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


def main(folder, first, last, zero=False):
    torch.manual_seed(1)
    model = Model()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 7], gamma=0.3)
    ranks = pyrannc.get_world_size()
    config = pyrannc.Config(deterministic_dropout=True, calibrate=False, self_check=False)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "plan.json"
        path.write_text(json.dumps(plan(model, ranks)))
        model = pyrannc.RaNNCModule(model, optimizer, config, zero=zero, load_deployment=path)
        run(folder, first, last, model, optimizer, scheduler)


def plan(model, ranks):
    """One whose stages all have weights, as the planner's of so small a model need not."""
    stages = {1: [[0]], 2: [[0], [1]], 3: [[0], [1, 2]], 4: [[0], [1, 2], [3]]}[ranks]
    batch = torch.zeros(2, ROWS // ranks, dtype=torch.long).unbind()
    graph = capture(model, batch, {}, None, explicit_draws=True).graph
    return borders.plan(graph, stages, 3 if ranks > 1 else 1, "1f1b", "never", seed=3)


def run(folder, first, last, model, optimizer, scheduler):
    ranks, rank = pyrannc.get_world_size(), pyrannc.get_rank()
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
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "zero" in sys.argv)
