"""The graphs of all places of a group compute what the model computes: outputs and gradients."""

import pytest
import torch
from lockstep_cases import ROWS, case_of, error
from sharded_models import OF_TORCH, OF_TRANSFORMERS

from pyrannc import _C
from pyrannc.capture.model import capture

# Some models compute parts of themselves in float32, whatever their weights are.
IN_FLOAT32 = {"llama", "phi3", "t5"}


def case(name):
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers")
    entry = {**OF_TORCH, **OF_TRANSFORMERS}[name].in_float64()
    return case_of(entry.build, *entry.inputs(ROWS))


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
