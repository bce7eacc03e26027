"""Batch normalisation by the statistics of the whole batch: ranks as threads of this process.

tests/dist/test_equality.py trains whole models so, on ranks of their own.
"""

import copy
import functools
import json

import pytest
import torch
from norm_models import NORMS
from pipeline import run_ranks
from torch import nn

from pyrannc import _C, Config, ConfigError, PlanError, RaNNCModule, TraceError
from pyrannc.capture.model import capture

ROWS = [3, 1, 0, 2]


def run(model, x, rows, work=lambda rank, start: start(), timeout_s=20.0, **stage):
    """What ``work(rank, start)`` gives, and this rank's buffers then, on each rank. All ranks are
    replicas of one stage of the captured model; ``start()`` begins a call.
    """
    captured = capture(model, (x,), sync_batch_norm=True)
    nodes = [
        node.name
        for node, placed in zip(
            captured.graph.nodes, _C.ir.depends_on_rows(captured.graph), strict=True
        )
        if placed
    ]
    plan = {
        "format": "rannc-plan", "version": 1, "feasible": True, "schedule": "gpipe",
        "micro_batches": 1, "interleave": 1,
        "stages": [{"nodes": nodes, "ranks": list(range(len(rows))), **stage}],
    }  # fmt: skip
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    parts = x.split(rows)

    def one_rank(communicator):
        executor = _C.runtime.Executor(
            captured.graph, captured.objects, _C.plan.Plan.from_json(json.dumps(plan)), communicator
        )
        parameters = [state[name].detach().clone() for name in executor.parameter_names]
        buffers = [state[name].clone() for name in executor.buffer_names]
        for parameter in parameters:
            parameter.requires_grad_()
        part = parts[communicator.rank].clone()
        start = functools.partial(executor.forward, [part], parameters, buffers, rows, True)
        result = work(communicator.rank, start)
        return result, dict(zip(executor.buffer_names, buffers, strict=True))

    return run_ranks(len(rows), one_rank, timeout_s)


@pytest.mark.parametrize("recompute", [False, True])
def test_ranks_may_use_different_outputs_in_each_of_several_backwards(recompute):
    """Each rank's loss uses one of the two outputs, or none, so gradients of the others are missing
    there; the backwards of the two heads wait for those of other ranks all the same.
    """
    model = NORMS["volume_norms"].build().double()
    (x,), _ = NORMS["volume_norms"].inputs(sum(ROWS))
    x = x.double()
    names = [name for name, _ in model.named_parameters()]
    # By backward and rank; in the second one the first head has no gradient anywhere.
    backwards = [[0, 1, 0, 0], [1, None, 1, 1], [None, 1, None, 0], [0, 1, 0, 0]]
    expected = []
    for uses in backwards:
        model.zero_grad()
        parts = [output.split(ROWS) for output in model(x)]
        losses = [parts[use][rank] for rank, use in enumerate(uses) if use is not None]
        sum(part.square().sum() for part in losses).backward()
        expected.append({name: model.get_parameter(name).grad for name in names})

    def step(rank, start):
        call = start()
        outputs = [output.clone() for output in call.outputs]
        weight = max(ROWS[rank] / sum(ROWS), 1e-300)  # a rank's loss counts by its rows
        return [
            call.backward(
                [
                    2 * output / weight if use == uses[rank] else None
                    for use, output in enumerate(outputs)
                ],
                number + 1 < len(backwards),
            )
            for number, uses in enumerate(backwards)
        ]

    for given, _ in run(model, x, ROWS, step, recompute=recompute):
        for number, gradients in enumerate(given):
            for name, gradient in zip(names, gradients, strict=False):
                case = f"{name}, backward {number}"
                wanted = expected[number][name]
                if wanted is None or gradient is None:
                    assert all(t is None or not t.any() for t in (wanted, gradient)), case
                else:
                    torch.testing.assert_close(gradient, wanted, msg=case)


@pytest.mark.parametrize("recompute", [False, True])
def test_two_calls_may_be_open_at_once(recompute):
    """Each recomputes from its own statistics, and updates the running ones once."""
    model = NORMS["flat_norms"].build().double()
    (x,), _ = NORMS["flat_norms"].inputs(sum(ROWS))
    x = x.double()
    names = [name for name, _ in model.named_parameters()]
    twin = copy.deepcopy(model)
    twin(x).square().mean().backward()
    twin(x)

    def step(rank, start):
        calls = [start(), start()]
        return [call.backward([2 * output / 4 / max(ROWS[rank], 1)
                               for output in call.outputs]) for call in calls]  # fmt: skip

    for both, buffers in run(model, x, ROWS, step, recompute=recompute):
        for gradients in both:
            for name, gradient in zip(names, gradients, strict=False):
                torch.testing.assert_close(gradient, twin.get_parameter(name).grad, msg=name)
        for name, buffer in buffers.items():
            torch.testing.assert_close(buffer, twin.get_buffer(name), msg=name)


def test_a_batch_in_bfloat16_has_statistics_in_float32():
    """As torch has them under autocast. In bfloat16 alone, 2 of 3 digits would be gone."""
    model = nn.BatchNorm2d(3)
    x = (1 + 0.1 * torch.randn(sum(ROWS), 3, 5, 5)).bfloat16()
    expected = model(x)
    means, variances = model.running_mean.clone(), model.running_var.clone()
    model.reset_running_stats()
    for rank, (call, buffers) in enumerate(run(model, x, ROWS)):
        torch.testing.assert_close(buffers["running_mean"], means, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(buffers["running_var"], variances, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(call.outputs[0], expected.split(ROWS)[rank])


def test_a_replica_that_does_not_come_is_named_with_what_is_waited_for():
    with pytest.raises(_C.util.CommError, match="batch statistics"):
        run(
            nn.BatchNorm1d(4),
            torch.randn(5, 4),
            [3, 2],
            lambda rank, start: start() if rank == 0 else None,
            timeout_s=0.3,
        )


# What users see


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x):
        return self.layers(x).square().mean()


def wrapped(path=None, model=None, **settings):
    config = Config(calibrate=False, **settings)
    return RaNNCModule(model or Net(), config=config, load_deployment=path)


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["pipeline_num", "min_pipeline"])
def test_several_micro_batches_are_refused_by_both_names(name):
    with pytest.raises(ConfigError) as error:
        wrapped(sync_batch_norm=True, **{name: 2})(X)
    assert str(error.value) == (
        f"{name} = 2, but with sync_batch_norm the statistics of module 'layers.1' are those of "
        f"the whole batch, which must then be one micro-batch.\n  Leave {name} or sync_batch_norm "
        "out."
    )


def test_without_batch_normalisation_in_training_the_setting_changes_nothing():
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4).eval())
    plans = []
    for sync in (True, False):
        model = wrapped(model=layers, sync_batch_norm=sync, pipeline_num=4)
        model(X)
        plans.append(model.plan)
    assert plans[0].micro_batches == 4
    assert [stage.nodes for stage in plans[0].stages] == [stage.nodes for stage in plans[1].stages]


def test_a_loaded_plan_of_several_micro_batches_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    planned = wrapped(pipeline_num=4)
    planned(X)
    planned.save_deployment(path)
    with pytest.raises(PlanError, match="has 4 micro-batches, but with sync_batch_norm the stat"):
        wrapped(path, sync_batch_norm=True)(X)


def test_a_plan_made_in_eval_mode_for_several_micro_batches_cannot_train():
    model = wrapped(sync_batch_norm=True, pipeline_num=4, schedule="gpipe").eval()
    model(X)
    model.train()
    with pytest.raises(PlanError, match="by a first call in training mode"):
        model(X)


def test_an_operator_that_returns_its_statistics_is_named():
    class Native(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return torch.native_batch_norm(x, self.weight, None, None, None, True, 0.1, 1e-5)[0]

    with pytest.raises(TraceError, match=r"(?s)native_batch_norm.*test_sync_batch_norm\.py"):
        wrapped(model=Native(), sync_batch_norm=True)(X)
