"""The shortest use: rannc run -n 4 examples/tutorial.py"""

import torch
from torch import nn

import pyrannc

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model = pyrannc.RaNNCModule(model, optimizer)

data = torch.Generator().manual_seed(pyrannc.get_rank())  # every rank feeds its own batches
for step in range(20):
    x = torch.randn(16, 32, generator=data)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    if pyrannc.get_rank() == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.3f}")
