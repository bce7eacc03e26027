"""Which deployments an optimizer belongs to, without a walk through their models at each step."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pyrannc import live_deployments


class Counted(nn.Linear):
    """How often somebody has walked through its parameters."""

    walks = 0

    def named_parameters(self, *args, **kwargs):
        self.walks += 1
        return super().named_parameters(*args, **kwargs)


class Deployment(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


@pytest.fixture
def deployments():
    made = [
        Deployment(number=number, model=Counted(2, 2), task=SimpleNamespace(all_optimizers=()))
        for number in range(2)
    ]
    for each in made:
        live_deployments.add(each)
    return made


def found(optimizer, deployments):
    return [each.number for each in live_deployments.of_optimizer(optimizer) if each in deployments]


def test_models_are_walked_through_once_for_each_optimizer(deployments):
    first, second = deployments
    optimizer = torch.optim.SGD(second.model.parameters(), lr=0.1)
    walks = [each.model.walks for each in deployments]
    for _ in range(3):
        assert found(optimizer, deployments) == [1]
    assert [each.model.walks for each in deployments] == [count + 1 for count in walks]
    optimizer.add_param_group({"params": [first.model.bias]})
    assert found(optimizer, deployments) == [0, 1]
    optimizer.param_groups.pop(0)
    assert found(optimizer, deployments) == [0]


def test_another_parameter_in_the_place_of_one_counts(deployments):
    first, second = deployments
    optimizer = torch.optim.SGD([first.model.weight], lr=0.1)
    assert found(optimizer, deployments) == [0]
    optimizer.param_groups[0]["params"][0] = second.model.weight
    assert found(optimizer, deployments) == [1]


def test_a_parameter_that_comes_into_a_model_later_counts_from_the_next_capture_on(deployments):
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    assert found(optimizer, deployments) == []
    deployments[0].model.extra = parameter
    live_deployments.forget()
    assert found(optimizer, deployments) == [0]


def test_an_optimizer_of_a_deployment_is_its_own_without_parameters(deployments):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    deployments[1].task.all_optimizers = (optimizer,)
    assert found(optimizer, deployments) == [1]
