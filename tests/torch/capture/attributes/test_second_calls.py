"""What forward() leaves for its next call: a state is refused, what is made once is no matter."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCError, RaNNCModule, TraceError

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


class FirstBatch(Layer):
    """Centres by the mean of the first batch, for ever."""

    def forward(self, x):
        if self.state is None:
            self.state = x.mean(0).detach()
        return self.linear(x - self.state).square().mean()


class OwnMeanOfFirstBatch(Layer):
    """Each call computes what only the first one keeps."""

    def forward(self, x):
        mean = x.mean(0).detach()
        if "mean" not in self.masks:
            self.masks["mean"] = mean
        return self.linear(x - self.masks["mean"]).square().mean()


class FirstWeights(Layer):
    """A penalty of what has changed since the first call."""

    def forward(self, x):
        if self.state is None:
            self.state = self.linear.weight.detach().clone()
        return self.linear(x).square().mean() + (self.linear.weight - self.state).square().sum()


class FirstNoise(Layer):
    def forward(self, x):
        if self.state is None:
            self.state = torch.randn(4)
        return self.linear(x + self.state).square().mean()


class OtherFirstCall(Layer):
    """Makes a mask in the first call, and does something else in it, too."""

    def forward(self, x):
        h = self.linear(x)
        if self.state is None:
            self.state = torch.arange(4).float()
            h = h.relu()
        return (h * self.state).square().mean()


class MaskAndWarmUp(Layer):
    """Makes a mask in the first call, and counts calls beside."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if self.state is None:
            self.state = torch.arange(4).float()
        self.calls += 1
        return self.linear(x).mul(self.state).square().mean() * (0.1 if self.calls < 9 else 1.0)


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


class MasksOfOther(OwnMasks):
    """Masks of the sizes of what is of a call, and of a buffer; a flag says that there are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(0.5))
        self.made = False

    def forward(self, x):
        if not self.made:
            self.masks[4] = torch.zeros_like(x[0]) + x.new_ones(4).cumsum(0) * self.step
            self.made = True
        return super().forward(x)


FRONT_ENDS = pytest.mark.parametrize("front_end", ["torchscript", "export"])


@FRONT_ENDS
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (OwnState, "state"), (GlobalState, "STATE"), (OtherSecondCall, "state"),
        (FirstBatch, "state"), (OwnMeanOfFirstBatch, "masks"), (FirstWeights, "state"),
        (FirstNoise, "state"), (OtherFirstCall, "state"), (MaskAndWarmUp, "calls"),
    ],
)  # fmt: skip
def test_a_state_that_goes_from_call_to_call_is_refused(kind, name, front_end):
    model = RaNNCModule(kind(), config=Config(calibrate=False, frontend=front_end))
    with pytest.raises(TraceError, match=rf"would compute something else: '\S*{name}'"):
        model(torch.randn(2, 4))
    assert STATE is None


@FRONT_ENDS
@pytest.mark.parametrize("kind", [OwnMasks, GlobalMasks, MasksOfOther])
def test_what_is_made_once_does_not_hinder(kind, front_end):
    MASKS.clear()
    torch.manual_seed(0)
    plain = kind()
    twin = copy.deepcopy(plain)
    model = RaNNCModule(plain, config=Config(calibrate=False, frontend=front_end))
    for seed in range(3):
        x = torch.randn(2 + seed, 4)
        loss, expected = model(x), twin(x)  # also the twin's calls between those of the model
        assert torch.equal(loss, expected)
        loss.backward()
        expected.backward()
    torch.testing.assert_close(model.linear.weight.grad, twin.linear.weight.grad)
    assert plain.masks == {}


@FRONT_ENDS
def test_what_forward_leaves_beside_is_told_to_who_reads_it(front_end):
    layer = OwnMasks()
    model = RaNNCModule(layer, config=Config(calibrate=False, frontend=front_end))
    model(torch.randn(2, 4)).backward()
    with pytest.raises(RaNNCError, match="'state' of the model is a tensor that forward"):
        float(layer.state.mean())
