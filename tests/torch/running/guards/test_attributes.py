"""What modules hold is what it is now, not at the first capture: also functions, tensors, and what
dicts and objects in attributes hold."""

import collections
import dataclasses
import enum
import functools
import types

import numpy as np
import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule
from pyrannc.running.guards.attributes import Attributes


class Phase(enum.Enum):
    WARM_UP, MAIN = 1, 2


class Settings:
    def __init__(self):
        self.shift, self.steps = 1.0, 0


class Loss:
    weight = 1.0


class Schedule:
    """Its values are read by methods of its own."""

    def __init__(self):
        self.first, self.second, self.third, self.fourth = 1.0, {"a": {"b": [1.0]}}, 1.0, 1.0

    def factor(self):
        return self.first * self.within

    @property
    def within(self):
        return self.second["a"]["b"][0]

    def __call__(self):
        return self.third

    def bound(self):
        return self.fourth


class Opaque:
    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 1.0


class OfClass(dict):
    """With attributes of its own."""


@dataclasses.dataclass(slots=True)
class Slots:
    shift: float = 0.0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act, self.mask = nn.Linear(4, 4), torch.tanh, torch.ones(4)
        self.args, self.settings = types.SimpleNamespace(scale=1.0), Settings()
        self.weights, self.terms = {"a": 1.0}, [torch.zeros(4), 0.5]
        self.rate, self.turn, self.phase = np.float32(1), 1 + 0j, Phase.WARM_UP
        self.dtype, self.table, self.tags = torch.float32, np.ones(2), {"a"}
        self.schedule, self.loss, self.slots = Schedule(), Loss, Slots()
        self.bound, self.scaled = Schedule().bound, functools.partial(torch.mul, 1.0)
        self.groups, self.mapping = [{"rate": 1.0}], collections.UserDict(gain=1.0)
        self.second = nn.Linear(4, 4)
        self.path, self.by_name = [self.linear, self.second], {"a": self.linear}
        self.active, self.switches = [True] * 24, dict.fromkeys(range(24), True)
        self.queue, self.opaque = collections.deque([1.0, 2.0]), Opaque()
        self.of_class, self.numbers = OfClass(gain=1.0), set(range(24))
        self.helped_by, self.scale_3 = 1.0, 1.0

    def forward(self, x):
        x = self.act(self.linear(x)) * self.mask * self.args.scale * self.weights["a"]
        x = x * float(self.rate) * self.turn.real * (2 if self.phase is Phase.MAIN else 1)
        x = x.to(self.dtype).float() * float(self.table[0]) * (2 if "b" in self.tags else 1)
        x = self.scaled(x) * self.schedule.factor() * self.schedule() * self.bound()
        x = x * self.loss.weight * Loss.weight * self.groups[0]["rate"] * self.mapping["gain"]
        for layer in (*self.path, self.by_name["a"]):
            x = layer(x)
        x = x * self.active[3] if self.switches[3] else -x
        x = x * self.queue[0] * self.opaque.gain * self.of_class["gain"] * len(self.numbers)
        x = self.helped(x) * getattr(self, f"scale_{len(self.path[:0]) + 3}")
        return x + self.slots.shift + self.settings.shift + self.terms[0] * self.terms[1]

    def helped(self, x):
        return x * self.helped_by


CHANGES = {
    "act": lambda layer: setattr(layer, "act", torch.relu),
    "mask": lambda layer: setattr(layer, "mask", torch.full((4,), 0.5)),
    "mask, in place": lambda layer: layer.mask.mul_(2),
    "args.scale": lambda layer: setattr(layer.args, "scale", 3.0),
    "settings.shift": lambda layer: setattr(layer.settings, "shift", 3.0),
    "weights.a": lambda layer: layer.weights.update(a=3.0),
    "terms": lambda layer: layer.terms.__setitem__(0, torch.ones(4)),
    "rate": lambda layer: setattr(layer, "rate", np.float32(3)),
    "turn": lambda layer: setattr(layer, "turn", 3 + 0j),
    "phase": lambda layer: setattr(layer, "phase", Phase.MAIN),
    "dtype": lambda layer: setattr(layer, "dtype", torch.float16),
    "table": lambda layer: setattr(layer, "table", np.full(2, 3.0)),
    "table, in place": lambda layer: layer.table.fill(3),
    "tags": lambda layer: layer.tags.add("b"),
    "schedule.first": lambda layer: setattr(layer.schedule, "first", 3.0),
    "schedule.second": lambda layer: layer.schedule.second["a"]["b"].__setitem__(0, 3.0),
    "schedule.third": lambda layer: setattr(layer.schedule, "third", 3.0),
    "bound": lambda layer: setattr(layer.bound.__self__, "fourth", 3.0),
    "scaled": lambda layer: setattr(layer, "scaled", functools.partial(torch.mul, 3.0)),
    "loss.weight": lambda layer: setattr(Loss, "weight", 3.0),
    "slots.shift": lambda layer: setattr(layer.slots, "shift", 3.0),
    "groups.0.rate": lambda layer: layer.groups[0].update(rate=3.0),
    "mapping.gain": lambda layer: layer.mapping.update(gain=3.0),
    "path": lambda layer: layer.path.reverse(),
    "path, shorter": lambda layer: layer.path.pop(),
    "path, another": lambda layer: setattr(layer, "path", (layer.linear,)),
    "by_name": lambda layer: layer.by_name.update(a=layer.second),
    "active": lambda layer: layer.active.__setitem__(3, False),
    "active.24": lambda layer: layer.switches.update({3: False}),
    "queue": lambda layer: layer.queue.rotate(),
    "opaque": lambda layer: setattr(layer.opaque, "gain", 3.0),
    "of_class": lambda layer: layer.of_class.update(gain=3.0),
    "numbers": lambda layer: layer.numbers.add(99),
    "of_method": lambda layer: setattr(layer, "helped_by", 3.0),
    "of_getattr": lambda layer: setattr(layer, "scale_3", 3.0),
    "forward": lambda layer: setattr(layer, "forward", lambda x: layer.linear(x)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_call_computes_with_what_there_is_now(what):
    torch.manual_seed(0)
    model, x = nn.Sequential(Layer(), nn.Linear(4, 4)), torch.randn(2, 4)
    wrapped = RaNNCModule(model, config=Config(calibrate=False))
    with torch.no_grad():
        before = wrapped(x)
        CHANGES[what](model[0])
        torch.testing.assert_close(wrapped(x), model(x))
        assert not torch.equal(wrapped(x), before)


def test_what_a_script_puts_into_a_model_for_itself_is_not_compared():
    layer = Layer()
    attributes = Attributes(layer)
    before = attributes.now()
    layer.mean_loss, layer.last_output, layer.curve = 0.5, torch.ones(4), {"loss": 0.5}
    assert not attributes.difference(before, attributes.now())
    layer.forward = None
    assert attributes.difference(before, attributes.now()) == "forward = None"


def test_nor_where_the_model_is_a_librarys():
    layer = nn.TransformerEncoderLayer(4, 2)
    attributes = Attributes(layer)
    before = attributes.now()
    layer.mean_loss, layer.norm1.curve = 0.5, [0.5]
    assert not attributes.difference(before, attributes.now())
    layer.norm_first = True
    assert attributes.difference(before, attributes.now()) == "norm_first = True"


def test_an_array_that_stays_what_it_is_does_not_differ_and_is_shown_where_it_does():
    layer = Layer()
    layer.table[0] = np.nan
    attributes = Attributes(layer)
    before = attributes.now()
    layer.table = layer.table.copy()
    assert not attributes.difference(before, attributes.now())
    layer.table = np.zeros(1)
    assert attributes.difference(before, attributes.now()) == "table = array([0.])"


def test_what_the_code_does_not_read_of_an_object_is_not_compared():
    layer = Layer()
    attributes = Attributes(layer)
    before = attributes.now()
    layer.settings.steps += 1
    assert attributes.difference(before, attributes.now()) == ""
    layer.settings.shift, layer.mask, layer.act = 2.0, torch.ones(4), torch.relu
    assert attributes.difference(before, attributes.now()) == (
        "act = relu, mask = a tensor of shape [4] and 1 more"
    )


def test_functions_that_libraries_put_there_are_not_compared():
    layer = Layer()
    attributes = Attributes(layer)
    before = attributes.now()
    layer.forward = pyrannc.get_rank
    assert attributes.difference(before, attributes.now()) == ""


@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("0.extra", lambda model: setattr(model[0], "extra", nn.Linear(4, 4))),
        ("2", lambda model: model.append(nn.Linear(4, 4))),
        ("1.bias", lambda model: setattr(model[1], "bias", nn.Parameter(torch.ones(4)))),
        ("1.scale", lambda model: setattr(model[1], "scale", nn.Parameter(torch.ones(4)))),
    ],
)
def test_what_is_added_after_the_first_call_is_an_error(name, add):
    model = nn.Sequential(Layer(), nn.Linear(4, 4, bias=False))
    wrapped = RaNNCModule(model, config=Config(calibrate=False))
    wrapped(torch.randn(2, 4))
    add(model)
    with pytest.raises(RaNNCError, match=f"'{name}' of the model was added after the first call"):
        wrapped(torch.randn(2, 4))
