"""What forward() leaves for its next call: a state is refused, what is made once is no matter."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCModule, TraceError

MASKS = {}
STATE = None


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.state, self.masks = nn.Linear(4, 4), None, {}


class OwnState(Layer):
    def forward(self, x):
        h = self.linear(x)
        self.state = h if self.state is None else self.state.detach() + h
        return self.state.square().mean()


class GlobalState(Layer):
    def forward(self, x):
        global STATE
        h = self.linear(x)
        STATE = h if STATE is None else STATE.detach() + h
        return STATE.square().mean()


class OtherSecondCall(Layer):
    """Does not read what it has left, but looks whether it has."""

    def forward(self, x):
        h = self.linear(x)
        if self.state is not None:
            h = h.relu()
        self.state = h
        return h.square().mean()


class OwnMasks(Layer):
    def of(self, x):
        return self.masks

    def forward(self, x):
        masks = self.of(x)
        if x.shape[1] not in masks:
            masks[x.shape[1]] = torch.arange(x.shape[1]).float()
        self.state = self.linear(x)  # beside it something for the script
        return (self.state * masks[x.shape[1]]).square().mean()


class GlobalMasks(OwnMasks):
    def of(self, x):
        return MASKS


@pytest.mark.parametrize(
    ("kind", "name"), [(OwnState, "state"), (GlobalState, "STATE"), (OtherSecondCall, "state")]
)
def test_a_state_that_goes_from_call_to_call_is_refused(kind, name):
    model = RaNNCModule(kind(), config=Config(calibrate=False))
    with pytest.raises(TraceError, match=rf"would compute something else: '\S*{name}'"):
        model(torch.randn(2, 4))
    assert STATE is None


@pytest.mark.parametrize("kind", [OwnMasks, GlobalMasks])
def test_what_is_made_once_does_not_hinder(kind):
    torch.manual_seed(0)
    plain = kind()
    twin = copy.deepcopy(plain)
    model = RaNNCModule(plain, config=Config(calibrate=False))
    for seed in range(3):
        x = torch.randn(2 + seed, 4)
        loss, expected = model(x), twin(x)  # also the twin's calls between those of the model
        assert torch.equal(loss, expected)
        loss.backward()
        expected.backward()
    torch.testing.assert_close(model.linear.weight.grad, twin.linear.weight.grad)
    assert plain.masks == {}
