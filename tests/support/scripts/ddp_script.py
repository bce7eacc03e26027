"""A script for DistributedDataParallel in which the one line was added, and the wrapper left in."""

import os

import torch
import toy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import pyrannc

for name in ("RANK", "LOCAL_RANK", "SIZE"):  # what torchrun would have set
    value = os.environ.get(f"OMPI_COMM_WORLD_{name}", "1" if name == "SIZE" else "0")
    os.environ["WORLD_SIZE" if name == "SIZE" else name] = value
os.environ.setdefault("MASTER_ADDR", "localhost")
torch.distributed.init_process_group("gloo")
model = toy.new_model()
optimizer = toy.new_optimizer(model)
model = pyrannc.RaNNCModule(model, optimizer)
model = DistributedDataParallel(model)
rows = toy.Rows()
sampler = DistributedSampler(rows, shuffle=False)
share = toy.GLOBAL_BATCH // torch.distributed.get_world_size()
for batch in DataLoader(rows, batch_size=share, sampler=sampler):
    optimizer.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
