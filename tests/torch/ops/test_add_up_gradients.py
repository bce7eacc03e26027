"""Gradients are added up from micro-batch to micro-batch by nodes of our own, one for all small
parameters. What a parameter gets never depends on what another one gets."""

import copy
import json

import pytest
import torch
from pipeline import run_ranks
from torch import nn
from torch.nn import functional

from pyrannc import _C, Config, RaNNCModule
from pyrannc.capture.model import capture

LARGE = 40_000  # times 8 float64: more than small parameters have together


class Shared(nn.Module):
    """Parameters whose gradients are one and the same tensor, or views of one, used twice, not at
    all, frozen, and large ones."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(8)) for _ in range(2))
        self.viewed = nn.Parameter(torch.randn(2, 4))
        self.scalar, self.one = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(1))
        self.twice = nn.Parameter(torch.randn(8, 8))
        self.never = nn.Parameter(torch.randn(8))
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.large, self.turned = (nn.Parameter(torch.randn(LARGE, 8) / 100) for _ in range(2))

    def forward(self, x):
        # Equal shapes: both get the same gradient, and views of it go to the others.
        sums = self.first + self.second + self.frozen + self.viewed.view(8)
        x = x * (self.scalar + self.one.squeeze(0))
        y = torch.tanh(x @ self.twice + sums) @ self.twice.t()
        wide = y @ (self.large.t() + self.turned.t())
        return (y.square().mean(1) + wide.square().mean(1)).mean()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_gradients_are_those_of_one_backward_times_all_factors(schedule, micro_batches, recompute):
    torch.manual_seed(0)
    twin = Shared().double()
    config = Config(schedule=schedule, pipeline_num=micro_batches, recompute=recompute)
    model = RaNNCModule(copy.deepcopy(twin), None, config)
    x = torch.randn(8, 8, dtype=torch.float64)
    for factor in (3.0, 0.5):  # the second adds to the first
        (factor * model(x)).backward()
    loss = model(x)
    loss.backward(retain_graph=True)
    loss.backward()
    # torch itself adds to two gradients of one memory where backward() runs twice.
    trained = {name: each for name, each in twin.named_parameters() if each.requires_grad}
    gradients = torch.autograd.grad(twin(x), trained.values(), allow_unused=True)
    found = dict(model.named_parameters())
    for name, once in zip(trained, gradients, strict=True):
        expected = None if once is None else 5.5 * once
        torch.testing.assert_close(found[name].grad, expected, rtol=1e-12, atol=1e-12)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 2048)

    def forward(self, x):
        return self.linear(x).square().mean()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_linear_layer_adds_to_the_sum_without_a_gradient_beside_it(schedule):
    layers = Wide()
    weight_bytes = layers.linear.weight.nbytes
    config = Config(schedule=schedule, pipeline_num=4, self_check=False)
    model, x = RaNNCModule(layers, None, config), torch.randn(8, 512)
    model(x).backward()  # plans, and keeps what its runs need
    model.zero_grad()
    with _C.runtime.MemoryRecorder() as memory:
        model(x).backward()
    assert weight_bytes <= memory.peak_bytes < 1.5 * weight_bytes


class Tied(nn.Module):
    """A weight that two linear layers and an embedding use, and one that is also used otherwise."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.middle = nn.Linear(8, 8)

    def forward(self, tokens):
        x = torch.tanh(self.middle(self.embedding(tokens)) @ self.middle.weight)
        scores = functional.linear(x, self.embedding.weight)
        again = functional.linear(functional.linear(x, self.middle.weight), self.embedding.weight)
        return scores.square().mean() + again.square().mean()


class Turned(nn.Module):
    """Two parameters that get views of one gradient, which nobody else holds then."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(8, 3)) for _ in range(2))

    def forward(self, x):
        return (x @ (self.a.t() + self.b.t())).square().mean()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("kept_passes", [0, 1, 2])
@pytest.mark.parametrize("micro_batches", [1, 2])
# Each alone in a bucket, which then is the gradient's own memory, or both in one.
@pytest.mark.parametrize("bucket_bytes", [1, 1000])
@pytest.mark.parametrize("model_class", [Turned, Tied])
def test_replicas_add_up_apart_also_what_they_keep_under_no_sync(
    schedule, kept_passes, micro_batches, bucket_bytes, model_class
):
    torch.manual_seed(0)
    model, rows = model_class().double(), 4
    x = torch.randn(2 * rows, 3, dtype=torch.float64)
    if model_class is Tied:
        x = torch.randint(7, (2 * rows, 3))
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(model(x), parameters)
    captured = capture(model, (x,))
    placed = zip(captured.graph.nodes, _C.ir.depends_on_rows(captured.graph), strict=True)
    nodes = [node.name for node, wanted in placed if wanted]
    plan = {
        "format": "rannc-plan",
        "version": 1,
        "schedule": schedule,
        "micro_batches": micro_batches,
        "stages": [{"nodes": nodes, "ranks": [0, 1], "recompute": False}],
    }

    def one_rank(communicator):
        executor = _C.runtime.Executor(
            captured.graph,
            captured.objects,
            _C.plan.Plan.from_json(json.dumps(plan)),
            communicator,
            bucket_bytes=bucket_bytes,
        )
        own = x[rows * communicator.rank :][:rows]
        state = [dict(model.named_parameters())[name] for name in executor.parameter_names]
        for no_sync in (*[True] * kept_passes, False):
            call = executor.forward([own], state, [], [rows, rows], True, no_sync)
            found = call.backward([torch.ones((), dtype=torch.float64)])
        return dict(zip(executor.parameter_names, found, strict=False))

    for found in run_ranks(2, one_rank):
        for (name, _), once in zip(model.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(found[name], (1 + kept_passes) * once)


class TwoInputs(nn.Module):
    """Its arguments get views of one gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, y):
        return self.linear((x.unsqueeze(1) + y.unsqueeze(1)).squeeze(1)).square().mean()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_of_arguments_are_scaled_and_added_up_apart(schedule, micro_batches):
    torch.manual_seed(0)
    twin = TwoInputs().double()
    x, y = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(twin(x, y), (x, y))
    config = Config(schedule=schedule, pipeline_num=micro_batches)
    model = RaNNCModule(copy.deepcopy(twin), None, config)
    loss = model(x, y) * 3
    loss.backward(retain_graph=True)
    loss.backward()
    for argument, once in zip((x, y), expected, strict=True):
        torch.testing.assert_close(argument.grad, 6 * once, rtol=1e-12, atol=1e-12)
