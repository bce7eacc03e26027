"""Optimizers whose state replicas can share, and those that are refused by name."""

import pytest
import torch
from schedule_free import ScheduleFree

import pyrannc
from pyrannc.errors import ConfigError
from pyrannc.optimizer import per_number


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(6, 4)), torch.nn.Parameter(torch.randn(6))]


class Scaled(torch.optim.SGD):
    """As layer-wise rates do: the step of a parameter has the length of the parameter."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * p.grad * p.norm() / (p.grad.norm() + 1e-6)


class Signs(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.lerp_(p.grad, 0.1)
                    p -= group["lr"] * mean.sign()


def test_torchs_and_others_that_treat_each_number_by_itself_are_known():
    for kind in per_number._KNOWN:
        assert per_number.reason(kind(parameters())) == ""
    # The list is right: those of torch are tried, too.
    for kind in per_number._KNOWN:
        assert per_number.elementwise.fault_of_halves(kind(parameters())) == "", kind
    assert per_number.reason(Signs(parameters(), lr=0.1)) == ""
    # One number has no halves: the step was tried on none, and the class was refused.
    numbers = [torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.ones(1))]
    assert per_number.reason(Signs(numbers, lr=0.1)) == ""
    assert per_number.reason(Signs(numbers + parameters(), lr=0.1)) == ""
    scaled = per_number.reason(Scaled(numbers + parameters(), lr=0.1))
    assert "needs the whole of a parameter" in scaled


class Keeping(torch.optim.SGD):
    """``made`` gives what it keeps of each parameter."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("kept", self.made(p))
                    p -= group["lr"] * p.grad


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda p: torch.zeros(3), "its state 'kept' has 3 numbers for a parameter of 16"),
        (lambda p: {"a": [torch.zeros_like(p)]}, "its state 'kept' is a dict with tensors in it"),
        (lambda p: (torch.zeros_like(p), 1), "its state 'kept' is a tuple with tensors in it"),
        (lambda p: torch.zeros(1), ""),
        (lambda p: (1, 0.5, None), ""),
    ],
)
def test_state_of_which_nobody_knows_how_it_is_cut_is_refused(made, fault):
    # The part of one replica was in state_dict() and in checkpoints for all of them.
    optimizer = Keeping(parameters(), lr=0.1)
    optimizer.made = made
    assert per_number.reason(optimizer) == fault


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaled(parameters(), lr=0.1),
        lambda: torch.optim.Adafactor(parameters(), lr=0.1),
        lambda: torch.optim.Muon(parameters()[:1]),
    ],
)
def test_those_that_need_a_whole_parameter_are_refused_by_name(make):
    optimizer = make()
    name = type(optimizer).__name__
    with pytest.raises(ConfigError, match=f"(?s){name} out over the replicas.*AdamW or SGD"):
        per_number.check(optimizer)


def test_one_that_exchanges_parameters_beside_its_steps_is_refused():
    # eval() failed on the shapes of its state, which is of a part, or on its dtype of 32 bits.
    model = torch.nn.Linear(4, 2)
    optimizer = ScheduleFree(model.parameters())
    with pytest.raises(
        ConfigError, match=r"but its train\(\) and eval\(\) change whole parameters"
    ):
        pyrannc.RaNNCModule(model, optimizer, zero=True)
    with pytest.raises(ConfigError, match=r"its train\(\) and eval\(\) change the parameters"):
        pyrannc.RaNNCModule(model, optimizer, master_weights=True)
    assert pyrannc.RaNNCModule(model, optimizer, zero="auto")._given.zero is False


def test_wrapping_refuses_them_and_other_values():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adafactor(model.parameters())
    with pytest.raises(ConfigError, match="Adafactor"):
        pyrannc.RaNNCModule(model, optimizer, zero=True)
    with pytest.raises(ConfigError, match="zero is 3; it must be True, False, 'auto'"):
        pyrannc.RaNNCModule(model, zero=3)
    assert pyrannc.RaNNCModule(model, optimizer, zero="auto")._given.zero is False
    optimizer = torch.optim.AdamW(model.parameters())
    assert pyrannc.RaNNCModule(model, optimizer, zero="auto")._given.zero == "auto"


def test_one_replica_has_nothing_to_share():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model = pyrannc.RaNNCModule(model, optimizer, enable_zero=True)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    assert optimizer.state[model.weight]["exp_avg"].shape == (2, 4)
