"""torch.compile before and after a model is wrapped."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import RaNNCModule


class Tanh(nn.Module):  # not of torch, which the compiler treats otherwise
    def forward(self, x):
        return torch.tanh(x)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), Tanh(), nn.Linear(8, 2))


def compiled_inside(model):
    model[0] = torch.compile(model[0])
    model[2].compile()
    return model


def compiled_in_place(model):
    model.compile()
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward)
    model[0].forward = torch.compile(model[0].forward)
    model[1].forward = torch.compile(model[1].forward)
    return model


HOW = [torch.compile, compiled_inside, compiled_in_place, compiled_forward]


def trained(called, model):
    """Two steps through ``called``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for seed in range(2):
        optimizer.zero_grad()
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        losses.append(called(x).square().mean())
        losses[-1].backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize("compile_it", HOW)
def test_a_compiled_model_is_taken_as_what_it_was_made_of(compile_it, capfd):
    plain = build()
    wrapped = RaNNCModule(compile_it(copy.deepcopy(plain)))
    assert capfd.readouterr().err.count("was compiled by torch.compile, and is taken") == 1
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(trained(wrapped, wrapped), trained(plain, plain))


def test_the_compiler_around_a_wrapper_compiles_nothing(monkeypatch):
    plain = build()
    wrapped = RaNNCModule(copy.deepcopy(plain))
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph

    compiled = torch.compile(wrapped, backend=backend)
    torch.testing.assert_close(trained(compiled, compiled), trained(plain, plain))
    assert not seen
    wrapped.compile(backend=backend)
    wrapped(torch.ones(6, 4))
    assert not seen


def test_what_a_function_computes_around_a_wrapper_is_compiled():
    wrapped, seen = RaNNCModule(build()), []

    def backend(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes if node.op.startswith("call"))
        return graph

    @torch.compile(backend=backend)
    def step(x):
        return wrapped(x * 2).square().mean()

    found, expected = step(torch.ones(6, 4)), wrapped(2 * torch.ones(6, 4)).square().mean()
    torch.testing.assert_close(found, expected)
    assert seen[1:] == ["square", "mean"] and len(seen) == 3, seen  # none of the library
