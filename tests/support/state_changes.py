"""Ways to change what forward() reads from Python, between two calls of a wrapped model.

``CHANGES`` says of each what a wrapped model does: with RIGHT a guard sees the change, and the next
call computes with it; with AUDITED no guard does, and an audit is an error.
"""

import array
import collections
import contextvars
import functools
import itertools
import logging
import os
import string
import sys
import tempfile
import types
import typing
import weakref
from pathlib import Path

import numpy as np
import torch
from torch import nn

import pyrannc
from pyrannc import Config, RaNNCError, RaNNCModule

RIGHT, AUDITED = "right", "audited"
FACTOR, TABLE, LONG, TEACHER = 1.0, {"gain": 1.0}, list(range(6000)), [1.0]
OF_CACHE, OF_GENERATOR, OF_WEAK = [1.0], [1.0], weakref.WeakKeyDictionary()
OF_ITERATOR, OF_CHAIN = [1.0], collections.ChainMap({}, {"gain": 1.0})
CONTEXT = contextvars.ContextVar("state_changes", default=1.0)
BOX = [1.0]
LOGGER = logging.getLogger("state_changes")
FILE = Path(tempfile.gettempdir()) / f"state_changes_{os.getpid()}"
ELSEWHERE = types.ModuleType("state_changes_elsewhere")  # of the user's
ELSEWHERE.__file__, ELSEWHERE.FACTOR = __file__, 1.0
sys.modules[ELSEWHERE.__name__] = ELSEWHERE


class Slots:
    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 1.0


class Dict(dict):
    """With attributes of its own."""


class List(list):
    """With attributes of its own."""


class Schedule:
    decay = 1.0

    def __init__(self):
        self.first = 1.0

    def value(self):
        return self.first


class Doubling:
    def __call__(self, x):
        return x


class Reading(Dict):
    """Computes what it does not hold."""

    def __missing__(self, key):
        return TABLE.get("missing", 1.0)


@functools.cache
def cached():
    return OF_CACHE[0]


@functools.singledispatch
def dispatched(x):
    return 1.0


def values():
    while True:
        yield OF_GENERATOR[0]


def with_default(x, gain=1.0):
    return x * gain


def with_attribute(x):
    return x * with_attribute.gain


def with_code(x):
    return x


def with_code_changed(x):
    return x * 3


with_attribute.gain = 1.0


def with_list(x, gains=[1.0], *, more=[1.0]):  # noqa: B006
    return x * gains[0] * more[0]


def of_list(x, gains):
    return x * gains[0]


def times_first(box):
    return lambda x: x * box[0]


class Doubled:
    """A descriptor."""

    def __get__(self, net, kind=None):
        return net.__dict__["_raw"] * 2

    def __set__(self, net, value):
        net.__dict__["_raw"] = value


class Tripled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


def closed(gain, table):
    def call(x):
        return x * gain * table["gain"]

    def change(value):
        nonlocal gain
        gain = value

    return call, change


CLOSED, change_closed = closed(1.0, CLOSED_TABLE := {"gain": 1.0})


class Net(nn.Module):
    rate = 1.0
    rates: typing.ClassVar = {"a": 1.0}
    doubled = Doubled()

    def __init__(self):
        super().__init__()
        self.ops = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        one, two = self.ops[:2]
        self.path, self.pair, self.named = [one, two], (one, two), {"first": one}
        self.nested = [[one], [two]]
        self.beta, self.active, self.switches = 1.0, [1.0] * 24, dict.fromkeys(range(24), 1.0)
        self.slots, self.queue = Slots(), collections.deque([1.0, 2.0])
        self.array, self.numbers = [1.0] * 24, set(range(24))
        self.of_class, self.of_list = Dict(gain=1.0), List([1.0])
        self.of_list.gain = 1.0
        self.schedule, self.args = Schedule(), types.SimpleNamespace(gain=1.0)
        self.doubling, self.reading = Doubling(), Reading()
        self.long = list(map(object, ())) or [1.0] * 5000
        self.values, self.iterator = values(), map(lambda _: OF_ITERATOR[0], itertools.count())
        self.partial = functools.partial(torch.mul, 1.0)
        self.dropout = nn.Dropout(0.0)
        self.fresh = None
        OF_WEAK[self] = 1.0
        self.of_list_first = functools.partial(of_list, gains=[1.0])
        self.bytes, self.c_array = bytearray([1] * 4), array.array("d", [1.0] * 4)
        self.other, self.doubled = Schedule(), 0.5
        self.referred = weakref.ref(self.other)
        self.optimizers = [torch.optim.SGD([torch.zeros(1)], lr=1.0)]
        self.rated_by = torch.optim.lr_scheduler.LambdaLR(self.optimizers[0], lambda step: 1.0)
        self.deep = {"a": {"b": {"c": {"d": [1.0]}}}}
        self.rows = [{"gain": 1.0} for _ in range(100)]
        self.grid, self.by_pair = np.array([one, None], dtype=object), {(0, 1): one}
        self.wide = np.ones((100, 100))
        self.functions = [times_first(BOX)]

    @property
    def rated(self):
        return self.rate

    @staticmethod
    def plain(x):
        return x

    def swapped(self, x):
        return x

    def on_object(self, x):
        return x

    def forward(self, x):
        for op in (*self.path, *self.pair, *self.named.values(), *itertools.chain(*self.nested)):
            x = x + torch.tanh(op(x))
        # Before the products, which other changes have made so large that tanh() hides these.
        for op in (*filter(None, self.grid), *self.by_pair.values()):
            x = x + torch.tanh(op(x))
        x = x * self.beta * self.active[3] * self.switches[3] * self.slots.gain * self.queue[0]
        x = x * self.array[3] * len(self.numbers) * self.of_class["gain"] * self.of_list.gain
        x = x * self.schedule.value() * self.schedule.decay * self.args.gain * self.long[7]
        x = self.partial(self.doubling(x)) * self.rated * self.rates["a"] * self.reading["b"]
        x = self.on_object(self.swapped(self.plain(x))) * next(self.values) * next(self.iterator)
        x = CLOSED(with_code(with_attribute(with_default(x)))) * FACTOR * TABLE["gain"]
        x = x * LONG[1] * TEACHER[0] * ELSEWHERE.FACTOR * getattr(string, "FACTOR", 1.0)
        x = x * OF_WEAK[self] * OF_CHAIN["gain"] * cached() * dispatched(self.beta)
        x = x * CONTEXT.get() * float(os.environ.get("STATE_CHANGES", 1))
        x = x * (3 if LOGGER.isEnabledFor(logging.DEBUG) else 1)
        x = x * (float(FILE.read_text()) if FILE.exists() else 1.0)
        x = self.of_list_first(with_list(x)) * self.bytes[2] * self.c_array[2] * self.doubled
        x = x * self.referred().first * self.optimizers[0].param_groups[0]["lr"]
        x = x * self.rated_by.get_last_lr()[0] * self.deep["a"]["b"]["c"]["d"][0]
        x = self.functions[0](x) * self.rows[99]["gain"] * float(self.wide[50, 50])
        return self.dropout(x).square().mean()


def set_global(name, value):
    globals()[name] = value


def setting(name, value=3.0):
    return lambda net: setattr(net, name, value)


CHANGES = {
    "a number": (RIGHT, setting("beta")),
    "an entry of a long list": (RIGHT, lambda net: net.active.__setitem__(3, 3.0)),
    "an entry of a long dict": (RIGHT, lambda net: net.switches.update({3: 3.0})),
    "an attribute in a slot": (RIGHT, lambda net: setattr(net.slots, "gain", 3.0)),
    "the order of a deque": (RIGHT, lambda net: net.queue.rotate()),
    "another array": (RIGHT, setting("array", [3.0] * 24)),
    "an element of a set": (RIGHT, lambda net: net.numbers.add(99)),
    "another list of modules": (RIGHT, lambda net: setattr(net, "path", [*net.ops[2:]])),
    "the order of modules": (RIGHT, lambda net: net.path.reverse()),
    "fewer modules": (RIGHT, lambda net: net.path.pop()),
    "more modules": (RIGHT, lambda net: net.path.append(net.ops[3])),
    "another tuple of modules": (RIGHT, lambda net: setattr(net, "pair", (net.ops[3],))),
    "a module in a dict": (RIGHT, lambda net: net.named.update(first=net.ops[3])),
    "a module in lists of a list": (RIGHT, lambda net: net.nested[1].append(net.ops[3])),
    "an entry of a subclass of dict": (RIGHT, lambda net: net.of_class.update(gain=3.0)),
    "an attribute of a subclass of list": (RIGHT, lambda net: setattr(net.of_list, "gain", 3.0)),
    "an attribute of an object": (RIGHT, lambda net: setattr(net.schedule, "first", 3.0)),
    "an attribute of a namespace": (RIGHT, lambda net: setattr(net.args, "gain", 3.0)),
    "an entry of a very long list": (AUDITED, lambda net: net.long.__setitem__(7, 3.0)),
    "arguments of a partial": (RIGHT, setting("partial", functools.partial(torch.mul, 3.0))),
    "a probability": (RIGHT, lambda net: setattr(net.dropout, "p", 1.0)),
    "a number of the class": (RIGHT, lambda net: setattr(Net, "rate", 3.0)),
    "a number over that of the class": (RIGHT, setting("rate", 5.0)),
    "an entry of the class": (RIGHT, lambda net: Net.rates.update(a=3.0)),
    "a number of another class": (RIGHT, lambda net: setattr(Schedule, "decay", 3.0)),
    "a method of another class": (
        RIGHT,
        lambda net: setattr(Doubling, "__call__", lambda self, x: x * 2),
    ),
    "a property of the class": (RIGHT, lambda net: setattr(Net, "rated", 7.0)),
    "a static method": (RIGHT, lambda net: setattr(Net, "plain", staticmethod(lambda x: x * 3))),
    "a method of the class": (RIGHT, lambda net: setattr(Net, "swapped", lambda self, x: x * 3)),
    "a method of the object": (RIGHT, setting("on_object", lambda x: x * 3)),
    "a global": (RIGHT, lambda net: set_global("FACTOR", 3.0)),
    "an entry of a global dict": (RIGHT, lambda net: TABLE.update(gain=3.0)),
    "an entry that is missing": (RIGHT, lambda net: TABLE.update(missing=3.0)),
    "an entry of a long global list": (AUDITED, lambda net: LONG.__setitem__(1, 3)),
    "an element of a global list": (RIGHT, lambda net: TEACHER.__setitem__(0, 3.0)),
    "a global of another file": (RIGHT, lambda net: setattr(ELSEWHERE, "FACTOR", 3.0)),
    "a global of a library": (AUDITED, lambda net: setattr(string, "FACTOR", 3.0)),
    "a variable of a closure": (RIGHT, lambda net: change_closed(3.0)),
    "an entry in a closure": (RIGHT, lambda net: CLOSED_TABLE.update(gain=3.0)),
    "an entry of a weak dict": (RIGHT, lambda net: OF_WEAK.update({net: 3.0})),
    "an entry of a chain of dicts": (RIGHT, lambda net: OF_CHAIN.update(gain=3.0)),
    "a cached function": (
        AUDITED,
        lambda net: (OF_CACHE.__setitem__(0, 3.0), cached.cache_clear()),
    ),
    "a dispatched function": (AUDITED, lambda net: dispatched.register(float, lambda x: 3.0)),
    "a generator": (AUDITED, lambda net: OF_GENERATOR.__setitem__(0, 3.0)),
    "an iterator": (AUDITED, lambda net: OF_ITERATOR.__setitem__(0, 3.0)),
    "a default of a function": (
        AUDITED,
        lambda net: setattr(with_default, "__defaults__", (3.0,)),
    ),
    "an attribute of a function": (RIGHT, lambda net: setattr(with_attribute, "gain", 3.0)),
    "the code of a function": (
        AUDITED,
        lambda net: setattr(with_code, "__code__", with_code_changed.__code__),
    ),
    "a context variable": (RIGHT, lambda net: CONTEXT.set(3.0)),
    "the environment": (RIGHT, lambda net: os.environ.update(STATE_CHANGES="3")),
    "the level of a logger": (RIGHT, lambda net: LOGGER.setLevel(logging.DEBUG)),
    "a file": (AUDITED, lambda net: FILE.write_text("3.0")),
    "in a list in a partial": (
        RIGHT,
        lambda net: net.of_list_first.keywords["gains"].__setitem__(0, 3.0),
    ),
    "a default that is a list": (RIGHT, lambda net: with_list.__defaults__[0].__setitem__(0, 3.0)),
    "a default by name that is a list": (
        RIGHT,
        lambda net: with_list.__kwdefaults__["more"].__setitem__(0, 3.0),
    ),
    "a byte": (RIGHT, lambda net: net.bytes.__setitem__(2, 3)),
    "an element of an array of C": (RIGHT, lambda net: net.c_array.__setitem__(2, 3.0)),
    "an element of a large array of numpy": (RIGHT, lambda net: net.wide.fill(3.0)),
    "behind a descriptor": (RIGHT, setting("doubled", 3.0)),
    "behind a weak reference": (RIGHT, lambda net: setattr(net.other, "first", 3.0)),
    "the rate of an optimizer": (
        RIGHT,
        lambda net: net.optimizers[0].param_groups[0].update(lr=3.0),
    ),
    "the rate of a scheduler": (RIGHT, lambda net: setattr(net.rated_by, "_last_lr", [3.0])),
    "deep in dicts": (RIGHT, lambda net: net.deep["a"]["b"]["c"]["d"].__setitem__(0, 3.0)),
    "in the last of many dicts": (RIGHT, lambda net: net.rows[99].update(gain=3.0)),
    "a module in an array of objects": (RIGHT, lambda net: net.grid.__setitem__(1, net.ops[3])),
    "a module by two numbers": (RIGHT, lambda net: net.by_pair.update({(0, 1): net.ops[3]})),
    "in a closure of a function in a list": (RIGHT, lambda net: BOX.__setitem__(0, 3.0)),
    "the class of a layer": (RIGHT, lambda net: setattr(net.ops[0], "__class__", Tripled)),
}


def run(change, **config) -> str:
    """What happens where ``change(net)`` is called between calls: RIGHT or AUDITED.

    Raises:
        AssertionError: Neither; or an error where nothing has changed.
    """
    OF_WEAK.clear()  # models of other runs go at any time, which is a change, too
    torch.manual_seed(0)
    plain = Net().double()
    twin = Net().double()
    twin.load_state_dict(plain.state_dict())
    rows = 4 * pyrannc.get_world_size()
    x = torch.randn(rows, 6, dtype=torch.float64)
    mine = x.chunk(pyrannc.get_world_size())[pyrannc.get_rank()]
    config = {"calibrate": False, "self_check": False, "pipeline_num": 1} | config
    model = RaNNCModule(plain, config=Config(**config))
    with torch.no_grad():
        for _ in range(2):  # the second call is audited
            before = twin(x)
            torch.testing.assert_close(model(mine), before)
        try:
            for net in (plain, twin):
                change(net)
            expected, found = twin(x), model(mine)
            assert not torch.equal(before, expected), "the change makes no difference"
            if torch.allclose(expected, found, rtol=1e-10, atol=0.0):  # some change it by 1e-6
                assert model.audit() >= 1
                return RIGHT
            try:
                model.audit()
            except RaNNCError as error:
                assert "right up to forward pass 1;" in str(error), error
                return AUDITED
            raise AssertionError("another number, and no error")
        finally:
            FILE.unlink(missing_ok=True)


def check(name) -> None:
    expected, change = CHANGES[name]
    assert run(change) == expected
