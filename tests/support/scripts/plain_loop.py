"""A plain loop with the one added line."""

import torch
import toy
from torch.utils.data import DataLoader, Subset

import pyrannc

rank, size = pyrannc.get_rank(), pyrannc.get_world_size()
model = toy.new_model()
optimizer = toy.new_optimizer(model)
model = pyrannc.RaNNCModule(model, optimizer)
rows = Subset(toy.Rows(), toy.rows_of(rank, size))
for batch in DataLoader(rows, batch_size=toy.GLOBAL_BATCH // size):
    optimizer.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
