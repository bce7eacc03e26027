"""An optimizer whose step needs all parameters in one place is refused, and no other one."""

import pytest
import torch
from torch import nn

from pyrannc import RaNNCModule
from pyrannc.errors import ConfigError
from pyrannc.optimizer import elementwise


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.add_((one * mean + (1 - one) * p.grad).sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 1 - two)


class LayerwiseSGD(torch.optim.SGD):
    """A norm of each parameter is of no other one, as LARS and LAMB take it."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(p.norm() / p.grad.norm())
        return super().step(closure)


class SAM(torch.optim.Optimizer):
    """As in Foret et al., "Sharpness-aware minimization", around another optimizer."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "SAM needs a closure"
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        moves = [0.05 * p.grad / norm for p in held]
        for p, move in zip(held, moves, strict=True):
            p.add_(move)
        closure()
        for p, move in zip(held, moves, strict=True):
            p.sub_(move)
        self.base.step()


class ClippedAdam(torch.optim.Adam):
    """As LAMB does it before its moments."""

    limit = 1.0

    def step(self, closure=None):
        held = [p for group in self.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(held, self.limit)
        return super().step(closure)


class Estimates(torch.optim.SGD):
    """A common number of all parameters, far from having an effect yet, as d of D-Adaptation."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            group["d"] = group.get("d", 0.0) + sum(p.grad.abs().sum().item() for p in held)
        return super().step(closure)


class NeedsRealState(torch.optim.SGD):
    def step(self, closure=None):
        return self.state["since the constructor"]["missing"]


TOGETHER = {
    "SAM": lambda parameters: SAM(parameters, torch.optim.SGD, lr=0.1, momentum=0.9),
    "SAM of AdamW": lambda parameters: SAM(parameters, torch.optim.AdamW, lr=1e-4),
    "a group each": lambda parameters: SAM([{"params": [p]} for p in parameters], torch.optim.SGD),
    "clipping": ClippedAdam,
    "estimates": lambda parameters: Estimates(parameters, lr=1e-8),
}
APART = {
    "Lion": Lion,
    "layers": lambda parameters: LayerwiseSGD(parameters, lr=0.1),
    "subclass": type("Mine", (torch.optim.AdamW,), {}),
    "a group each": lambda parameters: Lion([{"params": [p]} for p in parameters]),
    "one parameter": lambda parameters: SAM(list(parameters)[:1], torch.optim.SGD),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_class_that_computes_something_of_all_parameters_is_refused_by_name(name):
    optimizer = TOGETHER[name](model().parameters())
    with pytest.raises(ConfigError, match=f"{type(optimizer).__name__} computes something of all"):
        elementwise.check(optimizer, False)
    elementwise.check(optimizer, True)


@pytest.mark.parametrize("limit", [1e-3, 1.0, 100.0])
def test_clipping_is_found_whatever_its_limit(limit):
    optimizer = ClippedAdam(model().parameters(), lr=1e-6)
    optimizer.limit = limit
    with pytest.raises(ConfigError, match="ClippedAdam computes something of all parameters"):
        elementwise.check(optimizer, False)


@pytest.mark.parametrize("name", APART)
def test_a_class_that_treats_each_parameter_by_itself_passes(name):
    elementwise.check(APART[name](model().parameters()), False)


@pytest.mark.parametrize("kind", elementwise._KNOWN, ids=lambda kind: kind.__name__)
def test_those_of_torch_that_are_known_need_no_probe_but_pass_it(kind, monkeypatch):
    monkeypatch.setattr(elementwise, "_KNOWN", ())
    optimizer = kind(model().parameters())
    if kind is torch.optim.SparseAdam:  # it takes no dense gradient, and is refused elsewhere
        with pytest.raises(ConfigError, match="could not be tried"):
            elementwise.check(optimizer, False)
    else:
        elementwise.check(optimizer, False)


# A rate of 0, as at the beginning of a warm-up, moves nothing: everything would end equal.
def test_a_schedule_that_begins_with_no_rate_hides_nothing():
    optimizer = ClippedAdam(model().parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    with pytest.raises(ConfigError, match="ClippedAdam computes"):
        elementwise.check(optimizer, False)
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_a_probe_leaves_optimizer_and_model_as_they_were():
    layers = model()
    before = [parameter.detach().clone() for parameter in layers.parameters()]
    optimizer = SAM(layers.parameters(), torch.optim.AdamW, lr=0.1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("hook"))
    groups = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ConfigError):
        elementwise.check(optimizer, False)
    assert all(map(torch.equal, before, layers.parameters()))
    assert all(parameter.grad is None for parameter in layers.parameters())
    assert not optimizer.state and not optimizer.base.state and not called
    assert [dict(group) for group in optimizer.param_groups] == groups


def test_a_class_that_cannot_be_tried_is_refused_with_the_reason_unless_it_is_declared():
    layers = model()
    optimizer = NeedsRealState(layers.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"(?s)NeedsRealState.*KeyError.*elementwise_optimizer"):
        RaNNCModule(layers, optimizer)
    RaNNCModule(layers, optimizer, elementwise_optimizer=True)
