"""The graphs of all places of a group compute what the model computes: outputs and gradients."""

import dataclasses
import json

import lockstep
import pytest
import torch
from sharded_models import OF_TORCH, OF_TRANSFORMERS

from pyrannc import _C
from pyrannc.capture.arguments import pytree
from pyrannc.capture.model import capture

ROWS = 4
# Some models compute parts of themselves in float32, whatever their weights are.
IN_FLOAT32 = {"llama", "phi3", "t5"}


@dataclasses.dataclass
class Case:
    """A captured model in float64, its call, and the gradients that it has by itself."""

    model: torch.nn.Module
    graph: _C.ir.Graph
    objects: list
    inputs: dict
    outputs: list
    grads: dict

    @property
    def largest(self):
        return max(float(grad.abs().max()) for grad in self.grads.values())


def combined(outputs):
    """One number that depends on each element of the outputs."""
    return sum(
        (tensor * torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)).sum()
        for tensor in outputs
        if tensor.requires_grad
    )


def states(model):
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def case(name):
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers")
    entry = {**OF_TORCH, **OF_TRANSFORMERS}[name].in_float64()
    model = entry.build()
    args, kwargs = entry.inputs(ROWS)
    captured = capture(model, args, kwargs)
    inputs = dict(zip(names(captured.whole), captured.flatten(args, kwargs), strict=True))
    for prelude in captured.preludes:
        interpreter = _C.runtime.Interpreter(prelude, captured.objects, "cpu")
        state = [states(model)[each] for each in interpreter.state_names()]
        sums = interpreter.run([inputs[each] for each in names(prelude)], state, ROWS)
        inputs.update(zip(names(captured.graph)[len(names(captured.whole)) :], sums, strict=True))
    eager = entry.build()
    outputs = pytree.flatten(eager(*args, **kwargs))[0]
    combined(outputs).backward()
    grads = {
        each: parameter.grad
        for each, parameter in eager.named_parameters()
        if parameter.grad is not None
    }
    return Case(model, captured.graph, captured.objects, inputs, outputs, grads)


def names(graph):
    return [graph.values[index].name for index in graph.inputs]


def step(case, sharded, without=()):
    """Each place's outputs, and the gradients of the whole parameters, after one backward pass."""
    held = []
    for place in sharded:
        parts = {part.name: part for part in place.parts}
        mine = {}
        for name, tensor in states(case.model).items():
            part = parts.get(name)
            whole = tensor.detach()
            piece = lockstep.part(whole, part.dim, part.stretches) if part else whole
            mine[name] = piece.clone().requires_grad_(tensor.requires_grad)
        held.append(mine)
    graphs = [json.loads(place.graph.to_json()) for place in sharded]
    start = [{**mine, **case.inputs} for mine in held]
    outputs = lockstep.run(graphs, start, ROWS, case.objects, without)
    sum(combined(each) for each in outputs).backward()
    return outputs, {name: whole_gradients(name, sharded, held) for name in case.grads}


def whole_gradients(name, sharded, held):
    """The gradient as each place has it, or the one that their parts make together."""
    tensors = [mine[name] for mine in held]
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in tensors]
    parts = [part for place in sharded for part in place.parts if part.name == name]
    if not parts:
        return grads
    return [lockstep.joined(grads, parts[0].dim, [part.stretches for part in parts])]


def error(case, ways, without=()):
    """The largest difference from the model by itself, as a part of the largest gradient."""
    sharded = [_C.ir.shard(case.graph, ways, place) for place in range(ways)]
    _C.ir.verify_shard(case.graph, sharded)
    outputs, grads = step(case, sharded, without)
    wrong = [
        float((mine - expected).detach().abs().max())
        for each in outputs
        for mine, expected in zip(each, case.outputs, strict=True)
    ]
    for name, expected in case.grads.items():
        wrong += [float((grad - expected).abs().max()) / case.largest for grad in grads[name]]
    return max(wrong)


@pytest.mark.parametrize("name", [*OF_TORCH, *OF_TRANSFORMERS])
def test_outputs_and_every_gradient_are_those_of_the_model(name):
    model = case(name)
    for ways in (2, 3, 4, 8):
        assert error(model, ways) < (1e-5 if name in IN_FLOAT32 else 1e-10), ways


@pytest.fixture(scope="module")
def tied_lm():
    return case("tied_lm")


@pytest.mark.parametrize("kind", ["sum", "sum_gradient", "max", "all_gather"])
def test_a_collective_that_is_missing_is_seen(tied_lm, kind):
    sharded = _C.ir.shard(tied_lm.graph, 2, 0)
    assert any(node.op == f"group::{kind}" for node in sharded.graph.nodes)
    try:
        wrong = error(tied_lm, 2, without={f"group::{kind}"})
    except (AssertionError, RuntimeError):
        return  # a shape that the graph does not expect
    assert wrong > 1e-6


class Layer(torch.nn.Module):
    def __init__(self, width=64, heads=8, inner=256):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)

    def forward(self, x):
        split = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        seen = torch.nn.functional.scaled_dot_product_attention(*split)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


@pytest.mark.parametrize(("ways", "sent"), [(4, 786_432), (8, 917_504)])
def test_products_of_layers_send_four_all_reduces_of_their_width(ways, sent):
    # 8 (ways - 1) / ways numbers of each of 256 tokens and 64 columns, in each of two layers.
    layers = torch.nn.Sequential(Layer(), Layer())
    graph = capture(layers, (torch.randn(8, 32, 64, requires_grad=True),)).graph
    places = [_C.ir.shard(graph, ways, place).graph for place in range(ways)]
    assert {_C.ir.collective_bytes(each, ways, 8) for each in places} == {sent}
