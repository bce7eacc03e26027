"""A whole RaNNCModule on a stand-in device: it runs where the model is."""

import pytest
import standin
import torch
from models import ZOO
from torch.utils import _pytree as pytree

import pyrannc

STEPS = 3


@pytest.fixture(autouse=True)
def tied_parameters_stay_tied():
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def train(name, device, wrap):
    """Losses on the host, and where the host waited: in the last forward, and in its backward."""
    entry = ZOO[name]
    model = entry.build().to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    if wrap:
        model = pyrannc.RaNNCModule(model, optimizer)
    losses, waits = [], ()
    for step in range(STEPS):
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf,
            entry.inputs(4, step),
        )
        standin.clear_counts()
        loss = model(*args, **kwargs)
        if loss.dim():
            loss = loss.square().mean()
        waits = (standin.waits(),)
        standin.clear_counts()
        optimizer.zero_grad()
        loss.backward()
        waits += (standin.waits(),)
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), waits


@pytest.mark.parametrize("name", ["mlp", "residual_cnn", "tied_lm", "encoder", "loss"])
def test_a_wrapped_model_trains_as_on_the_cpu_and_forward_does_not_wait(name):
    expected, _ = train(name, "cpu", wrap=False)
    losses, (forward, backward) = train(name, "standin", wrap=True)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    assert forward == {}
    # Of the gradient that comes in for the loss: whether it is 1, and what all ranks have.
    assert sum(backward.values()) <= 2
    assert {place for _, place in backward} <= {"aten::_local_scalar_dense"}


def test_outputs_and_gradients_are_on_the_models_device():
    model = pyrannc.RaNNCModule(torch.nn.Linear(4, 2).to("standin:1"))
    with standin.device(1):
        output = model(torch.ones(3, 4, device="standin:1"))
        output.sum().backward()
    assert output.device == torch.device("standin:1")
    assert model.module.weight.grad.device == torch.device("standin:1")


def test_a_model_on_two_accelerators_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model[0].to("standin:0")
    model[1].to("standin:1")
    wrapped = pyrannc.RaNNCModule(model)
    message = "'0.bias' is on standin:0 and '1.bias' on standin:1"
    with pytest.raises(pyrannc.ConfigError, match=message):
        wrapped(torch.ones(3, 4, device="standin:0"))
