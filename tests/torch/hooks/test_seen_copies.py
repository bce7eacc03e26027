"""No gradient is lost by what a forward hook has seen, as of features that are distilled."""

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCError, RaNNCModule

SEEN = {}


def wrapped(hook=lambda module, args, output: SEEN.update(args=args, output=output), **settings):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    for module in (model[0], model[2]):
        module.register_forward_hook(hook)
    model = RaNNCModule(model, config=Config(calibrate=False, **settings))
    model(torch.ones(6, 4)).mean().backward()  # hooks are called without a gradient
    return model


@pytest.mark.parametrize("front_end", ["torchscript", "export"])
def test_a_loss_of_what_a_hook_has_seen_is_an_error(front_end):
    model = wrapped(frontend=front_end)
    loss = model(torch.ones(6, 4)).mean() + SEEN["output"].square().mean()
    with pytest.raises(RaNNCError, match=r"hook of '2' has seen[\s\S]*Return it from forward\(\)"):
        loss.backward()
    assert not SEEN["args"][0].requires_grad  # of a layer that is frozen


def test_what_needs_no_gradient_may_be_a_part_of_it():
    model = wrapped()
    out = model(torch.ones(6, 4))
    ((out - SEEN["output"].detach()).square().mean() + SEEN["args"][0].mean()).backward()
    with torch.no_grad():
        model(torch.ones(6, 4))
    assert not SEEN["output"].requires_grad
    assert float(SEEN["output"].mean().detach()) == SEEN["output"].mean().item()


@pytest.mark.parametrize("ask", ["register_hook", "retain_grad"])
def test_gradients_of_it_are_those_of_hooks_of_the_backward(ask):
    def hook(module, args, output):
        if output.requires_grad:
            getattr(output, ask)(*[print] * (ask == "register_hook"))

    model = wrapped(hook)
    with pytest.raises(RaNNCError, match=r"asks for a gradient[\s\S]*full_backward_hook"):
        model(torch.ones(6, 4))
