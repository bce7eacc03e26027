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
        for sequence in (False, True):
            wrong = error(model, ways, sequence=sequence)
            assert wrong < (1e-5 if name in IN_FLOAT32 else 1e-10), (ways, sequence)


@pytest.fixture(scope="module")
def tied_lm():
    return case("tied_lm")


@pytest.fixture(scope="module")
def gpt():
    def build():
        torch.manual_seed(0)
        return GPT(1).double()

    return case_of(build, (torch.randint(96, (ROWS, 32)),), {})


KINDS = [
    *((kind, False) for kind in ("sum", "sum_gradient", "max", "all_gather")),
    *((kind, True) for kind in ("sum_gradient", "reduce_scatter", "all_gather_sum_gradient")),
]


@pytest.mark.parametrize(("kind", "sequence"), KINDS)
def test_a_collective_that_is_missing_is_seen(tied_lm, gpt, kind, sequence):
    model = gpt if sequence else tied_lm
    sharded = _C.ir.shard(model.graph, 2, 0, sequence=sequence)
    assert any(node.op == f"group::{kind}" for node in sharded.graph.nodes)
    try:
        wrong = error(model, 2, without={f"group::{kind}"}, sequence=sequence)
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


class GPT(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words = torch.nn.Embedding(96, 64)
        self.layers = torch.nn.Sequential(*(Layer() for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(64), torch.nn.Linear(64, 96, bias=False)

    def forward(self, ids):
        scores = self.head(self.norm(self.layers(self.words(ids)))).flatten(0, 1)
        return torch.nn.functional.cross_entropy(scores, ids.flatten())


@pytest.mark.parametrize(("ways", "sent"), [(4, 786_432), (8, 917_504)])
def test_with_the_sequence_cut_rows_send_as_many_bytes_and_norms_save_parts(ways, sent):
    def graphs(layers):
        whole = capture(GPT(layers), (torch.randint(96, (8, 32)),)).graph
        return whole, *(_C.ir.shard(whole, ways, 1, sequence=cut).graph for cut in (False, True))

    def bytes_of_rows(graph):  # without the gradients of norms and biases
        return _C.ir.collective_bytes(graph, ways, 8) - _C.ir.collective_bytes(graph, ways, 0)

    whole, without, along = graphs(2)
    assert bytes_of_rows(along) == bytes_of_rows(without)
    _, _, fewer = graphs(1)
    assert 2 * (bytes_of_rows(along) - bytes_of_rows(fewer)) == sent

    tokens = [(0, 1), (32, 0), (64, 0)]
    between = {value.name: value.bytes(8) for value in whole.values if value.dims == tokens}
    mine = {value.name: value.bytes(8) for value in along.values if value.name in between}
    assert mine.keys() == between.keys() and len(mine) >= 14
    assert ways * sum(mine.values()) == sum(between.values())
