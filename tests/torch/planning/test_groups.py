"""How many ranks compute layers together, where the planner decides."""

import json
import types

import pytest
import torch

from pyrannc import _C, Config
from pyrannc.capture.model import capture
from pyrannc.errors import InfeasibleError
from pyrannc.planning import candidates, groups
from pyrannc.profiling import operators

MLP = """graph mlp(%x) -> (%y)
  input x: float32[B, 6] apart(0) grad
  parameter up: float32[10, 6] grad
  parameter down: float32[6, 10] grad
  buffer scale: float32[10]
  node first = aten::linear(%x, %up, none) -> %h
    result h: float32[B, 10] apart(0) grad
  node act = aten::mul.Tensor(%h, %scale) -> %a
    result a: float32[B, 10] apart(0) grad
  node second = aten::linear(%a, %down, none) -> %y
    result y: float32[B, 6] apart(0) grad
"""


class World:
    """Rank 0 of four, which nobody has to be told anything."""

    rank, size = 0, 4

    def broadcast(self, data, _):
        return data


def cluster(ranks=4):
    link = _C.cost.Link(bandwidth_bytes_per_s=1e9, latency_ns=1000.0)
    return _C.cost.Cluster(
        hosts=1, devices_per_host=ranks, device_memory_bytes=1e9, intra_host=link, inter_host=link
    )


def choice(**steps):
    """What is chosen where a step takes so many ns with groups of so many ranks."""
    made = groups.Choice(World(), 8)
    for name, ns in steps.items():

        def find(ns=ns):
            if ns is None:
                raise InfeasibleError("no plan fits: 'h' needs too much")
            return types.SimpleNamespace(step=types.SimpleNamespace(ns=ns))

        made.try_plan(int(name.removeprefix("of_")), name, find)
    return made


def test_numbers_divide_the_ranks():
    assert choice().numbers() == [2, 4]


@pytest.mark.parametrize(
    ("steps", "best"),
    [
        ({"of_1": 1000, "of_2": 960, "of_4": 951}, "of_1"),
        ({"of_1": 1000, "of_2": 949, "of_4": 948}, "of_4"),
        ({"of_1": 1000, "of_2": 949, "of_4": 949}, "of_2"),
        ({"of_1": None, "of_2": 5000, "of_4": 4900}, "of_4"),
        ({"of_1": None, "of_2": None, "of_4": 4900}, "of_4"),
        ({"of_1": 1000, "of_2": None}, "of_1"),
    ],
)
def test_groups_are_taken_where_they_gain_or_nothing_fits_without(steps, best):
    assert choice(**steps).best[1] == best


def test_where_nothing_fits_the_error_names_each_number():
    with pytest.raises(
        InfeasibleError, match=r"(?s)no plan fits: 'h'.*none: too much.*2: too much"
    ):
        choice(of_1=None, of_2=None).tell()


def test_what_the_collectives_alone_make_slow_is_not_measured():
    # Two sums of 8 rows of 24 bytes for each of two groups: 2 messages each, 1000 ns and a bit.
    graph = _C.ir.parse(MLP)
    group = groups.of(graph, 2, cluster())
    assert group.collective_ns(8) == 2 * (2 * 1000 + 8 * 24)
    made = choice(of_1=1000)
    costs = types.SimpleNamespace(
        rows=[2, 8], node=[[None, types.SimpleNamespace(forward_ns=0, backward_ns=0)]] * 3
    )
    assert made.cannot_gain(group, costs)
    assert not choice(of_1=10_000).cannot_gain(group, costs)
    assert not choice(of_1=None).cannot_gain(group, costs)


def test_a_graph_without_anything_to_cut_is_not_measured():
    graph = _C.ir.parse(
        "graph g(%x) -> (%y)\n  input x: float32[B, 6] apart(0) grad\n"
        "  node n = aten::sort(%x, -1, false) -> %y, %i\n"
        "    result y: float32[B, 6] apart(0) grad\n    result i: int64[B, 6] apart(0)\n"
    )
    assert choice(of_1=None).cannot_gain(groups.of(graph, 2, cluster()), None)


def test_a_rank_holds_its_part_of_each_tensor():
    graph = _C.ir.parse(MLP)
    held = groups.held(graph, groups.of(graph, 4, cluster()))
    # 10 units on four places: 3 at the first.
    assert [(value.name, mine, whole) for value, mine, whole in held] == [
        ("up", 72, 240),
        ("down", 72, 240),
        ("scale", 12, 40),
    ]
    assert all(mine == whole for _, mine, whole in groups.held(graph))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(32, 8), torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 24), torch.nn.Linear(24, 8)
        self.head = torch.nn.Linear(8, 32, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


def test_a_group_is_planned_for_as_one_device_with_the_memory_of_a_rank():
    model = Layers()
    captured = capture(model, (torch.randint(32, (4, 6)),))
    graph = captured.graph
    group = groups.of(graph, 2, cluster(2))
    world = _C.comm.make_local(1)[0]
    table, traced = operators.profile(group.sharded.graph, captured.objects, world, 4)
    held = groups.held(graph, group)
    moments = [2.0 * mine for value, mine, _ in held if value.kind != "constant"]
    saved = [_C.cost.SavedStorage(*storage) for storage in traced.storages]
    given = table, moments, saved, group.ways, group.link
    profile, saved = _C.cost.fold_group(graph, group.sharded, *given)
    step = _C.predict.StepModel(
        graph=group.graph,
        profile=profile,
        cluster=group.devices,
        costs=_C.predict.StepCosts(
            cores=1.0, accumulate_ns_per_byte=0.0, optimizer_ns=[0.0] * len(held), in_order=False
        ),
        optimizer=_C.predict.OptimizerMemory(
            largest_bytes=[0.0] * len(held), all_bytes=[0.0] * len(held)
        ),
        saved=saved,
        local_rows=[8],
        outputs=_C.plan.Outputs.loss,
    )
    request = _C.partition.Request(8, micro_batches=[2])
    planner = candidates.Planner(
        step, request, Config(), "", 0, None, lambda plan: group.of_ranks(plan, graph)
    )
    plan = planner.plan_of_ranks()
    _C.plan.verify(plan, graph, 2)
    (stage,) = plan.stages
    assert (stage.places, stage.ranks) == (2, [0, 1])
    assert set(stage.factors) == set(group.sharded.factors)
    mine = sum(mine for value, mine, _ in held if value.kind == "parameter")
    assert stage.predicted.param_bytes == mine
    assert stage.predicted.optimizer_bytes == 2 * mine
    # The collectives alone are messages of 1000 ns and more.
    note = json.loads(stage.notes)["group"]
    sent = _C.ir.collective_bytes(group.sharded.graph, 2, 4)
    assert note["collective_bytes"] == sent
    assert plan.step.ns > 2 * note["collective_ns"] > 2 * sent
