"""What captures of two processes have in common is found without the order and the names."""

import functools

import pytest
import torch
from torch import nn

import pyrannc
from pyrannc import _C
from pyrannc.capture.model import capture
from pyrannc.capture.reference import Reference, describe

NAMES = ["a", "b", "c"]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Shift(Scale):
    """Another function."""


class Tagged(torch.autograd.Function):
    """Takes something that it does not compute with."""

    @staticmethod
    def forward(ctx, x, tag):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def scripted(source):
    return torch.jit.CompilationUnit(source).f


class Branches(nn.Module):
    """A table, a constant, a scripted function and an autograd function in each branch; ``order``
    stands for that of a set."""

    def __init__(self, order, scales=(1.0, 2.0, 3.0)):
        super().__init__()
        self.order = order
        self.tables = nn.ModuleDict({n: nn.Embedding(7, 4, sparse=True) for n in order})
        self.scales = dict(zip(NAMES, scales, strict=True))
        self.double = scripted("def f(x):\n  return x * 2\n")

    def forward(self, words, **others):
        found = {}
        for name in self.order:
            scale = self.scales[name]
            hidden = self.tables[name](words) + others[name] + torch.tensor([scale] * 4)
            found[name] = Scale.apply(self.double(hidden), scale)
        return {"loss": torch.cat([found[n] for n in NAMES]).mean()} | found


def captured(order, **settings):
    torch.manual_seed(0)
    weights = {name: torch.randn(7, 4) for name in NAMES}
    model = Branches(order, **settings)
    with torch.no_grad():
        for name in NAMES:
            model.tables[name].weight.copy_(weights[name])
    torch.manual_seed(1)
    others = {name: torch.randn(5, 4) for name in NAMES}
    words = torch.arange(5)
    call = (words,), {name: others[name] for name in order}
    return model, call, capture(model, *call)


def replayed(made, model, call):
    """What the graph of a capture computes with the capture's objects, for this call."""
    rows = made.batch_size(*call)
    interpreter = _C.runtime.Interpreter(made.whole, made.objects, "cpu")
    tensors = dict(model.named_parameters())
    state = [tensors[name] for name in interpreter.state_names()]
    outputs = interpreter.run(made.flatten(*call), state, rows)
    return made.unflatten(outputs, rows)


def test_a_capture_follows_another_order_with_objects_of_its_own():
    _, _, first = captured("abc")
    model, call, own = captured("cab")
    reference = Reference.from_bytes(first.reference().to_bytes())
    assert reference.fingerprint() == first.reference().fingerprint()
    assert reference.fingerprint() != own.reference().fingerprint()
    other = own.following(reference)
    assert other.whole == first.whole and other.graph == first.graph
    assert other.reference().fingerprint() == reference.fingerprint()
    assert other.made_dense == first.made_dense
    assert [module for _, module, _ in first.made_dense] == [f"tables.{n}" for n in "abc"]
    assert set(map(id, other.objects)) == set(map(id, own.objects))
    assert own.following(own.reference()).whole == own.whole
    found, expected = replayed(other, model, call), model(*call[0], **call[1])
    assert list(found) == list(expected) == ["loss", "c", "a", "b"]
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_another_constant_is_another_model():
    _, _, first = captured("abc")
    _, _, own = captured("cab", scales=(1.0, 2.5, 3.0))
    with pytest.raises(pyrannc.TraceError, match=r"(?s)scripted|python|constant") as error:
        own.following(first.reference())
    assert "2.5" in str(error.value) and "2.0" in str(error.value)


def test_constants_count_where_the_graphs_look_alike():
    """As numbers of objects do not: two orders of a sum of constants have one text."""

    class Sum(nn.Module):
        def __init__(self, order):
            super().__init__()
            self.order = order

        def forward(self, x):
            for number in self.order:
                x = x + torch.tensor([float(number)] * 4)
            return x.mean()

    first, other = (capture(Sum(order), (torch.ones(5, 4),)) for order in ((1, 2), (2, 1)))
    assert first.whole.fingerprint() == other.whole.fingerprint()
    assert first.reference().fingerprint() != other.reference().fingerprint()
    with pytest.raises(pyrannc.TraceError, match=r"float32\[4\] of \[2.0, 2.0, 2.0, 2.0\]"):
        other.following(first.reference())


def call_of(function, *arguments):
    """The object of a call of an autograd function, as a capture holds it."""

    class Model(nn.Module):
        def forward(self, x):
            return function.apply(x, *arguments)

    return capture(Model(), (torch.ones(5, 4),)).objects[0]


LARGE = torch.arange(100.0)
DIFFERENT = {
    "values": (torch.tensor([1.0]), torch.tensor([2.0])),
    "dtype": (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
    "shape": (torch.ones(2, 3), torch.ones(3, 2)),
    "large": (LARGE, LARGE.flip(0)),
    "large shape": (LARGE, LARGE.reshape(10, 10)),
    "code": (
        scripted("def f(x):\n  return x * 2\n"),
        scripted("def f(x):\n  return x * 3\n"),
    ),
    "traced constant": (
        torch.jit.trace(lambda x: x + LARGE, torch.ones(100)),
        torch.jit.trace(lambda x: x + LARGE.flip(0), torch.ones(100)),
    ),
    "argument": (call_of(Scale, 2.0), call_of(Scale, 3.0)),
    "class": (call_of(Scale, 2.0), call_of(Shift, 2.0)),
}


@pytest.mark.parametrize("which", DIFFERENT)
def test_objects_that_differ_are_described_in_other_words(which):
    one, other = DIFFERENT[which]
    assert describe(one) != describe(other)


class Plain:
    """Python shows it by its address."""


STRIDES = iter((1, 2))
SET_ORDERS = iter(("ab", "ba"))
SAME = {
    "nan": lambda: torch.tensor([float("nan"), 1.0]),
    "large": lambda: LARGE.clone(),
    "strides": lambda: torch.ones(40, next(STRIDES))[:, 0],
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "conjugate": lambda: torch.ones(20, dtype=torch.complex64).conj(),
    "number": lambda: torch.tensor(3),
    "empty": lambda: torch.ones(0, 3),
    "code": lambda: scripted("def f(x):\n  return x * 2\n"),
    "argument": lambda: call_of(Scale, 2.0),
    "address": lambda: call_of(Tagged, Plain()),
    "partial": lambda: call_of(Tagged, functools.partial(print, Plain())),
    "set": lambda: call_of(Tagged, set(next(SET_ORDERS))),
}


@pytest.mark.parametrize("which", SAME)
def test_objects_that_are_the_same_are_described_in_the_same_words(which):
    one, other = SAME[which](), SAME[which]()
    assert one is not other and describe(one) == describe(other)
