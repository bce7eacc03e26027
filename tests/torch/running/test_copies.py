"""Copies of a wrapper that are made before its first call."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

import pyrannc
from pyrannc import Config, RaNNCModule


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def batch(seed):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))


def step(model, optimizer, seed):
    optimizer.zero_grad()
    model(batch(seed)).square().mean().backward()
    optimizer.step()


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def wrap(plain):
    optimizer = optimizer_of(plain)
    return RaNNCModule(plain, optimizer, Config(pipeline_num=1)), optimizer


def test_they_have_the_plan_of_the_first_that_is_called(monkeypatch):
    first, optimizer = wrap(build())
    second, its_optimizer = copy.deepcopy((first, optimizer))
    third = copy.deepcopy(second)
    step(second, its_optimizer, 0)
    monkeypatch.setattr("pyrannc.profiling.operators.profile", None)
    assert first.plan == third.plan == second.plan
    plain = build()
    own = optimizer_of(plain)
    for seed in range(2):  # as if it were alone
        step(first, optimizer, seed)
        step(plain, own, seed)
    torch.testing.assert_close(dict(first.state_dict()), dict(plain.state_dict()))
    torch.testing.assert_close(dict(third.state_dict()), dict(build().state_dict()))


def test_a_copy_that_was_changed_is_one_of_its_own():
    first, optimizer = wrap(build())
    changed, loaded = copy.deepcopy(first), pickle.loads(pickle.dumps(first))
    changed.module[2] = nn.Linear(8, 3)
    gone = copy.deepcopy(first)
    del gone
    step(first, optimizer, 0)
    for each in (changed, loaded):
        assert each._deployment is None
    assert changed(batch(0)).shape == (6, 3) and loaded(batch(0)).shape == (6, 2)


def test_an_average_of_torch_is_called_in_both_modes():
    plain = build()
    wrapped, optimizer = wrap(copy.deepcopy(plain))
    own = optimizer_of(plain)
    both = [swa_utils.AveragedModel(each) for each in (plain, wrapped)]
    for seed in range(3):
        step(plain, own, seed), step(wrapped, optimizer, seed)
        both[0].update_parameters(plain), both[1].update_parameters(wrapped)
    torch.testing.assert_close(both[1](batch(3)), both[0](batch(3)))
    for each in both:
        each.eval()
    torch.testing.assert_close(both[1](batch(3)), both[0](batch(3)))
    expected, found = (dict(each.state_dict()) for each in both)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("on_meta", [True, False])
def test_a_copy_reads_what_was_loaded_into_it(tmp_path, on_meta):
    """It had the values of the other one, without a word."""
    built = [build(), build()]
    for number, each in enumerate(built):
        with torch.no_grad():
            each[0].weight.fill_(number)
        pyrannc.save(tmp_path / str(number), each, optimizer_of(each))
    with torch.device("meta") if on_meta else nullcontext():
        model = build()
    optimizer = optimizer_of(model)
    wrapped = RaNNCModule(model, optimizer, Config(pipeline_num=1), weights=tmp_path / "0")
    average, untouched = copy.deepcopy(wrapped), copy.deepcopy(wrapped)
    pyrannc.load(tmp_path / "1", average)
    wrapped.eval()(batch(0))
    assert (average.module[0].weight == 1).all()
    for each in (wrapped, untouched):
        assert (each.module[0].weight == 0).all()
    pyrannc.save(tmp_path / "outer", swa_utils.AveragedModel(build()))
    with torch.device("meta"):
        outer = swa_utils.AveragedModel(RaNNCModule(build()))
    with pytest.raises(pyrannc.RaNNCError, match="Load it after the first call of the RaNNCModule"):
        pyrannc.load(tmp_path / "outer", outer)
