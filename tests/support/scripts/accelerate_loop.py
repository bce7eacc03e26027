"""The loop of Accelerate's documentation in which the one line was added."""

import toy
from accelerate import Accelerator
from torch.utils.data import DataLoader

import pyrannc

accelerator = Accelerator(cpu=True)
model = toy.new_model()
optimizer = toy.new_optimizer(model)
model = pyrannc.RaNNCModule(model, optimizer)
share = toy.GLOBAL_BATCH // accelerator.num_processes
loader = DataLoader(toy.Rows(), batch_size=share)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    optimizer.zero_grad()
    loss = model(**batch)["loss"]
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
