"""The signature of a wrapper's forward."""

import copy
import functools
import inspect
import types

import torch
from torch import nn

from pyrannc import RaNNCModule


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask=None, *, labels: int = 3, **more):
        return self.layer(input_ids)


def test_it_is_the_models():
    plain = Model()
    expected = inspect.signature(plain.forward)
    wrapped = RaNNCModule(plain)
    for one in (wrapped, copy.deepcopy(wrapped)):
        assert inspect.signature(one.forward) == expected
        assert one.forward.__self__ is one
        torch.testing.assert_close(one(torch.ones(3, 4)), plain(torch.ones(3, 4)))
        torch.testing.assert_close(one.forward(torch.ones(3, 4)), plain(torch.ones(3, 4)))


def test_it_is_that_of_another_callable_in_the_place_of_the_models():
    plain = Model()
    plain.forward = functools.partial(plain.forward, labels=4)
    expected = inspect.signature(plain.forward)
    assert inspect.signature(RaNNCModule(plain).forward) == expected


def test_another_forward_may_be_put_there_as_accelerate_does():
    plain = Model()
    wrapped, expected = RaNNCModule(plain), plain(torch.ones(3, 4))
    function = wrapped.forward.__func__
    wrapped.forward = types.MethodType(lambda self, *args: 2 * function(self, *args), wrapped)
    torch.testing.assert_close(wrapped(torch.ones(3, 4)), 2 * expected)
