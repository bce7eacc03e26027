"""Autocast casts what the CPU's casts, so that results can be compared."""

import pytest
import torch
from torch import nn
from torch.nn import functional


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_under_autocast_gives_what_it_gives_on_the_cpu(dtype):
    def run(device):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.GELU(), nn.Flatten(), nn.Linear(36, 8)).to(
            device
        )
        x = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(1)).to(device)
        with torch.autocast(device, dtype=dtype):
            hidden = model(x)
            both = torch.cat([hidden, x.flatten(1)[:, :8]])
            loss = functional.mse_loss(hidden, x.flatten(1)[:, :8])
        loss.backward()
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
        assert hidden.dtype == dtype
        return [hidden.detach().cpu(), both.detach().cpu(), loss.detach().cpu(), *gradients]

    for ours, theirs in zip(run("standin"), run("cpu"), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_a_weight_is_cast_once_in_a_block():
    weight = nn.Parameter(torch.ones(2, 2, device="standin"))
    x = torch.ones(1, 2, device="standin", dtype=torch.bfloat16)
    with torch.autocast("standin", dtype=torch.bfloat16):
        functional.linear(x, weight)
        used = torch.accelerator.memory_allocated()
        y = functional.linear(x, weight)
        # Two numbers of output; a second copy of the weight would have a block of its own.
        assert torch.accelerator.memory_allocated() - used == 512
    assert y.dtype == torch.bfloat16
