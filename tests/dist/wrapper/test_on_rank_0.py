"""Every rank saves, as a script for one process does, and the files are those of rank 0."""

import pytest


@pytest.mark.ranks("""
import tempfile
import torch
from torch import nn
import pyrannc
from pyrannc import Config, RaNNCModule, launch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters())
model = RaNNCModule(model, optimizer, Config(partition_num=2, calibrate=False))
average = torch.optim.swa_utils.AveragedModel(model)
model(torch.randn(4, 4)).square().mean().backward()
optimizer.step()
folder = launch.world().broadcast(tempfile.mkdtemp().encode(), 0).decode()
for _ in range(20):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    torch.save(state, f"{folder}/state.pt")
    torch.save(model.state_dict(), f"{folder}/model.pt")
    average.update_parameters(model)
    torch.save(average.state_dict(), f"{folder}/average.pt")
pyrannc.barrier()
whole = model.state_dict(rank0_only=False)
state = torch.load(f"{folder}/state.pt", weights_only=True)
for found in (state["model"], torch.load(f"{folder}/model.pt", weights_only=True)):
    assert all(torch.equal(found[name], value) for name, value in whole.items())
assert len(state["optimizer"]["state"]) == 4
found = torch.load(f"{folder}/average.pt", weights_only=True)
assert len(found) == 5 and found["n_averaged"] == 20
assert torch.equal(found["module.0.weight"], whole["0.weight"])
""")
def test_a_script_for_one_process_saves_the_whole_by_torch_save(done):
    pass
