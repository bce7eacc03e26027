"""Steps of torch's fused implementation, where the user chose none."""

from unittest import mock

import pytest
import torch

import pyrannc
from pyrannc.optimizer import steps_on_copies
from pyrannc.optimizer.step import fused, participants

CHOICES = {
    "adam": (torch.optim.Adam, "_fused_adam_", {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, "_fused_adamw_", {"weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, "_fused_sgd_", {"momentum": 0.9, "nesterov": True}),
}


def train(make, settings, dtype=torch.float32):
    """The parameters after five steps, and the optimizer; ``make(parameters)`` builds it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 33), torch.nn.Tanh(), torch.nn.Linear(33, 2))
    model.to(dtype)
    optimizer = make(model.parameters())
    wrapped = pyrannc.RaNNCModule(
        model, optimizer, pyrannc.Config(calibrate=False, self_check=False, **settings)
    )
    for step in range(5):
        optimizer.zero_grad()
        wrapped(torch.full((8, 6), 0.1 * step, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], optimizer


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_a_fused_step_is_the_step(name, dtype, tolerance):
    kind, function, options = CHOICES[name]

    def make(parameters):
        return kind(parameters, lr=0.01, **options)

    with mock.patch.object(torch, function, wraps=getattr(torch, function)) as fused:
        before, _ = train(make, {"fused_optimizer": False}, dtype)
        assert not fused.called
        after, optimizer = train(make, {}, dtype)
        assert fused.called
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert [group["fused"] for group in optimizer.state_dict()["param_groups"]] == [None]


@pytest.mark.parametrize(
    "choice",
    [{"fused": False}, {"foreach": True}, {"foreach": False}, {"lr": torch.tensor(0.01)}],
    ids=str,
)
def test_what_the_user_chose_stays(choice):
    with mock.patch.object(torch, "_fused_adamw_", wraps=torch._fused_adamw_) as fused:
        _, optimizer = train(lambda p: torch.optim.AdamW(p, **{"lr": 0.01, **choice}), {})
    assert not fused.called
    assert all(optimizer.param_groups[0][key] is value for key, value in choice.items())


def test_16_bits_are_rounded_as_ever():
    with mock.patch.object(torch, "_fused_adamw_", wraps=torch._fused_adamw_) as fused:
        train(lambda p: torch.optim.AdamW(p, lr=0.01), {}, torch.bfloat16)
    assert not any(p.dtype is torch.bfloat16 for c in fused.call_args_list for p in c.args[0])


def test_parameters_may_get_their_first_gradients_at_different_steps():
    # torch's fused SGD takes no momentum for some parameters and None for others: TypeError in
    # 2.13. Its own loop starts the momentum of a parameter with its first gradient.
    def steps(wrap, uses):
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        model = wrap(layer, optimizer)
        for has_bias in uses:
            optimizer.zero_grad()
            model(torch.ones(4, 6)).sum().backward()
            if not has_bias:
                layer.bias.grad = None
            optimizer.step()
        return list(layer.parameters())

    def wrapped(layer, optimizer):
        config = pyrannc.Config(calibrate=False, self_check=False)
        return pyrannc.RaNNCModule(layer, optimizer, config)

    for uses in ([False, True, False, True, True], [True, False, True]):
        with mock.patch.object(torch, "_fused_sgd_", wraps=torch._fused_sgd_) as fused:
            after = steps(wrapped, uses)
        assert fused.called  # in the steps where every gradient has its momentum, or none has
        torch.testing.assert_close(after, steps(lambda layer, _: layer, uses))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("rows_apart", [False, True])
def test_a_step_follows_the_strides(kind, rows_apart):
    # torch's fused ones take every tensor for contiguous, in 2.13.
    def steps(wrap):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 5)
        layer.weight = torch.nn.Parameter(torch.randn(5, 8)[:, :3] if rows_apart else layer.weight)
        optimizer = kind(layer.parameters(), lr=0.1)
        model = wrap(layer, optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sin().sum().backward()
            layer.weight.grad = layer.weight.grad.t().contiguous().t()
            optimizer.step()
        return list(layer.parameters())

    config = pyrannc.Config(calibrate=False, self_check=False)
    after = steps(lambda layer, optimizer: pyrannc.RaNNCModule(layer, optimizer, config))
    torch.testing.assert_close(after, steps(lambda layer, _: layer))


@pytest.mark.filterwarnings("ignore:optimizer contains")
def test_a_parameter_that_stands_in_a_group_twice_is_stepped_twice():
    # As from named_parameters(remove_duplicate=False) of tied weights. The fused implementation
    # counts both steps before it takes the first one.
    participants.install()
    ends = []
    for preferred in (True, False):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([parameter, parameter], lr=0.1)
        if preferred:
            fused.prefer(optimizer)
        for step in range(3):
            parameter.grad = torch.full_like(parameter, step + 1.0)
            optimizer.step()
        ends.append(parameter.detach().clone())
    assert torch.equal(*ends)


def test_each_group_has_its_own_implementation():
    def make(parameters):
        first, *rest = parameters
        groups = [{"params": [first], "foreach": False}, {"params": rest}]
        return torch.optim.SGD(groups, lr=0.01)

    with mock.patch.object(torch, "_fused_sgd_", wraps=torch._fused_sgd_) as fused:
        _, optimizer = train(make, {})
    (first,), rest = (group["params"] for group in optimizer.param_groups)
    stepped = [id(p) for call in fused.call_args_list for p in call.args[0]]
    assert id(first) not in stepped and all(id(p) in stepped for p in rest)


def test_a_trial_takes_the_same_implementation():
    _, optimizer = train(lambda p: torch.optim.AdamW(p, lr=0.01), {})
    tensor = torch.zeros(4, requires_grad=True)
    tensor.grad = torch.ones(4)
    copied = steps_on_copies.trial(optimizer, [[tensor]], [[tensor]])
    with mock.patch.object(torch, "_fused_adamw_", wraps=torch._fused_adamw_) as fused:
        steps_on_copies.step(optimizer, copied)
    assert fused.called and tensor.abs().min() > 0


@pytest.mark.parametrize("change", ["gradient", "parameter"])
def test_a_tensor_that_is_laid_out_in_another_order_is_stepped_right(change):
    def train(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        called = model
        if wrap:
            called = pyrannc.RaNNCModule(model, optimizer, pyrannc.Config(self_check=False))
        for step in range(3):
            optimizer.zero_grad()
            called(torch.full((8, 6), 0.1 * step)).square().mean().backward()
            other = model.weight.grad.t().contiguous().t()
            if change == "gradient":
                model.weight.grad = other
            elif step == 1:
                model.weight.data = model.weight.data.t().contiguous().t()
            optimizer.step()
        return model.weight.detach()

    torch.testing.assert_close(train(wrap=True), train(wrap=False))
