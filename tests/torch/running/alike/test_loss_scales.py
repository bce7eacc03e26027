"""float16 gradients under 1F1B, whose backward runs before the factor of a scaler is known."""

import math

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc.running.alike.loss_scales import LARGEST_SEED, loss_seed

SMALL = 2.0**-20  # of the loss: gradients of hidden layers are then below 6e-8, float16's smallest


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).float().square().mean() * SMALL


def gradients(model, steps, config=None):
    """Of the last of several steps under autocast and a gradient scaler, and that one's scale."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(6, 8)
    twin = model
    if config is not None:
        model = pyrannc.RaNNCModule(model, optimizer, config)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(x)
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {name: p.grad for name, p in twin.named_parameters()}, scale


def build():
    torch.manual_seed(1)
    return Net()


@pytest.mark.parametrize("pipeline_num", [1, 3])
def test_small_gradients_survive_from_the_second_step_on(pipeline_num):
    expected, scale = gradients(build(), steps=3)
    assert scale == 2.0**18  # unscaled by step(): gradients are of the loss itself
    config = pyrannc.Config(
        schedule="1f1b", pipeline_num=pipeline_num, calibrate=False, self_check=False
    )
    found, _ = gradients(build(), 3, config)
    for name, gradient in found.items():
        largest = expected[name].abs().max().item()
        torch.testing.assert_close(gradient, expected[name], rtol=1e-2, atol=1e-2 * largest)
    # In the first step, whose scale is not known before, they vanish.
    first, _ = gradients(build(), 1, config)
    assert expected["first.weight"].all() and not first["first.weight"].any()


def test_the_seed_is_the_last_scale_as_a_power_of_two():
    def seed(*scales):
        return loss_seed([{"output of forward pass 1": list(scales)}], before=4.0)

    assert seed("65536.0") == 2.0**16
    assert seed("100.0", "-300.0") == 256.0
    assert seed("0.0") == seed("1e-9") == 1.0
    assert seed("1e30") == LARGEST_SEED
    assert seed("nan", "inf") == loss_seed([{}], before=4.0) == 4.0
    assert math.frexp(LARGEST_SEED)[0] == 0.5
