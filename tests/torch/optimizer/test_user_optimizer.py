"""The optimizers that a user gives."""

import copy
import itertools

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import ConfigError, RaNNCModule


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def two_of(model):
    """One for each linear layer."""
    return [
        torch.optim.AdamW(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
    ]


def test_a_list_trains_as_without_the_wrapper():
    plain = build()
    twin = copy.deepcopy(plain)
    own, theirs = two_of(twin), two_of(plain)
    wrapped = RaNNCModule(plain, theirs)  # and runs the plan beside steps of both
    for seed in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        for model, optimizers in ((twin, own), (wrapped, theirs)):
            model.zero_grad()
            model(x).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    torch.testing.assert_close(dict(wrapped.state_dict()), dict(twin.state_dict()))
    with pyrannc.measure(wrapped) as measured:
        wrapped(x).square().mean().backward()
    state = sum(v.nbytes for each in theirs for s in each.state.values() for v in s.values())
    held = state + sum(2 * parameter.nbytes for parameter in plain.parameters())
    assert measured.peak_mib[0] * 2**20 >= held  # of both


def test_an_optimizer_twice_and_one_parameter_in_two_are_errors():
    model = build()
    one, other = two_of(model)
    with pytest.raises(ConfigError, match="optimizer is a dict: it must be an optimizer"):
        RaNNCModule(model, {"weights": one})
    with pytest.raises(ConfigError, match="optimizer 2 of the list, AdamW, stands there twice"):
        RaNNCModule(model, [one, other, one])
    whole = torch.optim.SGD([{"params": model[2].weight}, {"params": model[0].bias}], lr=0.1)
    with pytest.raises(ConfigError, match=r"optimizers 0 \(group 0\) and 1 \(group 1\) .*\(8,\)"):
        RaNNCModule(model, (one, whole))
    with pytest.raises(ConfigError, match="the optimizer holds a parameter that the model does"):
        RaNNCModule(build(), [torch.optim.SGD(build().parameters(), lr=0.1)])


def test_the_first_call_may_be_in_a_closure():
    plain = build()
    twin = copy.deepcopy(plain)
    own, theirs = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (twin, plain))
    wrapped, x = RaNNCModule(plain, theirs), torch.ones(6, 4)

    def step(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    for _ in range(2):
        torch.testing.assert_close(step(wrapped, theirs), step(twin, own))
    torch.testing.assert_close(dict(wrapped.state_dict()), dict(twin.state_dict()))


def test_a_closure_counts_once_in_the_time_of_a_step():
    plain = build()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    wrapped, times = RaNNCModule(plain, optimizer), []

    def closure():
        loss = wrapped(torch.ones(6, 4)).square().mean()
        loss.backward()
        return loss

    closure()
    steps = wrapped._deployment.steps
    with pytest.MonkeyPatch.context() as patch:
        # Every look at the clock takes a second.
        now = itertools.count(step=10**9)
        patch.setattr("pyrannc.job.elapsed.time.perf_counter_ns", lambda: next(now))
        before = steps.seconds
        optimizer.step(closure)
        times.append(steps.seconds - before)
    # Forward and backward are a part of it, and do not look.
    assert times == [pytest.approx(1)], times


@pytest.mark.parametrize("given", ["adamw", torch.optim.AdamW, [torch.optim.AdamW]])
def test_what_is_no_optimizer_is_refused(given):
    with pytest.raises(ConfigError, match=r"optimizer is .*: it must be an optimizer over"):
        RaNNCModule(build(), given)
