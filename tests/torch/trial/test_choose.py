"""Which numbers of micro-batches are run, and which one stays."""

import json
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pyrannc import _C, Config, PlanError, RaNNCModule
from pyrannc.planning import candidates
from pyrannc.running.deployment import Deployment
from pyrannc.trial import choose, measured_runs


def measured(ms, runs=2):
    return SimpleNamespace(shortest_ns=ms * 1e6, all_ns=runs * ms * 1e6)


def search(planned, ms, others, runs=2):
    """``ms``: of a run by number; others cannot be."""
    asked = []

    def run(count):
        asked.append(count)
        return measured(ms[count], runs) if count in ms else None

    best, found = choose.micro_batches(planned, measured(ms[planned]), others, run)
    assert [count for count in found if count != planned] == [c for c in asked if c in ms]
    return best, asked


def test_it_goes_to_smaller_numbers_as_long_as_they_are_faster():
    assert search(8, {8: 109, 4: 100, 2: 94, 1: 95}, [1, 2, 4, 16]) == (2, [4, 2, 1])
    assert search(8, {8: 109, 4: 100, 2: 94, 1: 90}, [1, 2, 4]) == (1, [4, 2, 1])


def test_it_goes_to_larger_numbers_if_the_first_smaller_one_is_not_faster():
    assert search(4, {4: 100, 2: 120, 8: 90, 16: 80, 32: 85}, [1, 2, 8, 16, 32]) == (
        16,
        [2, 8, 16, 32],
    )
    assert search(1, {1: 100, 2: 90, 4: 95}, [2, 4, 8]) == (2, [2, 4])


def test_one_that_cannot_be_ends_its_way():
    # Memory or the schedule forbids 2, so 1 is not asked for; 8 is slower.
    assert search(4, {4: 100, 1: 10, 8: 110, 16: 10}, [1, 2, 8, 16]) == (4, [2, 8])
    assert search(4, {4: 100}, [2, 8]) == (4, [2, 8])
    assert search(4, {4: 100}, []) == (4, [])


def test_what_is_faster_by_less_than_the_margin_is_not_taken():
    # 98 is 2 % less.
    assert search(4, {4: 100, 2: 98, 1: 50, 8: 98, 16: 50}, [1, 2, 8, 16]) == (4, [2, 8])
    assert search(4, {4: 100, 2: 97.9, 1: 96, 8: 50}, [1, 2, 8]) == (2, [2, 1])


def test_the_first_step_waits_for_so_many_seconds_only():
    # Two runs of two seconds each are expected, and six seconds are allowed.
    assert search(8, {8: 2000, 4: 1900, 2: 1800, 1: 1}, [1, 2, 4]) == (4, [4])
    assert search(8, {8: 3100, 4: 1}, [4]) == (8, [])
    # Seven runs of 90 and 80 ms are expected, but they took 3.0 and 2.6 s.
    assert search(8, {8: 100, 4: 90, 2: 80, 1: 1}, [1, 2, 4], runs=33) == (2, [4, 2])


def arrangements(ms, again=None):
    """``ms``: of the planner's plan, and of the best ones of other arrangements; ``again``: of the
    planner's when it runs once more."""
    asked = []

    def run(plan):
        asked.append(plan)
        return measured(ms[plan] if plan else again or ms[0])

    best, found = choose.arrangements(range(len(ms)), measured(ms[0]), run)
    first = ms[0] if best > 0 else again or ms[0]
    others = [ms[plan] for plan in asked if plan]
    assert [each.shortest_ns for each in found] == [each * 1e6 for each in (first, *others)]
    return best, asked


def test_all_shapes_are_tried_and_the_fastest_is_taken():
    assert arrangements([100, 110, 90, 95]) == (2, [1, 2, 3, 0])
    assert arrangements([100, 110, 99]) == (0, [1, 2])
    assert arrangements([100]) == (0, [])
    # 98 is 2 % less, which is noise.
    assert arrangements([100, 98, 97.9, 97]) == (2, [1, 2, 3, 0])


def test_the_planner_s_plan_stays_where_the_machine_had_been_slower_for_a_while():
    assert arrangements([150, 100, 110], again=102) == (0, [1, 2, 0])
    assert arrangements([150, 100, 110], again=102.1) == (1, [1, 2, 0])


def test_shapes_are_tried_for_so_many_seconds_only():
    assert arrangements([3100, 1]) == (0, [])
    # Two runs of 2 s are expected, and six seconds are allowed.
    assert arrangements([2000, 1900, 1]) == (1, [1, 0])


def test_a_number_is_expected_to_take_as_long_as_its_runs():
    patience = measured_runs.Patience(least=2, most=7, enough_s=1.0)
    # Seven times 0.1 s; until there is one second; two runs.
    assert [patience.expected_s(run_s) for run_s in (0.1, 0.4, 3)] == [0.7000000000000001, 1.0, 6]


def plan_begins_with(count, monkeypatch):
    """Whatever the planner finds, with ``count`` micro-batches."""
    made = candidates.Planner.plan

    def plan(planner):
        return planner.with_micro_batches(made(planner), count)

    monkeypatch.setattr(candidates.Planner, "plan", plan)


def runs_take(ms, monkeypatch):
    """Of each number of micro-batches; they run all the same."""
    measure = measured_runs.measure

    def faked(executor, tensors, differentiable, program, *rest):
        found = measure(executor, tensors, differentiable, program, *rest)
        found.shortest_ns = ms[program.micro_batches] * 1e6
        return found

    monkeypatch.setattr(measured_runs, "measure", faked)


def first_step(**config):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model = RaNNCModule(model, optimizer, Config(self_check=False, **config))
    model(torch.randn(8, 8)).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return model, gradients, torch.get_rng_state()


def test_a_step_after_a_trial_is_that_of_the_number_that_was_taken(monkeypatch):
    plan_begins_with(4, monkeypatch)
    runs_take({4: 5, 2: 4, 1: 5}, monkeypatch)
    runs, replan = [], Deployment.replan

    def watched(deployment, plan):
        runs.append(weakref.ref(deployment.first))
        return replan(deployment, plan)

    monkeypatch.setattr(Deployment, "replan", watched)
    model, gradients, random = first_step()
    assert model.plan.micro_batches == 2
    # Four, two, one, and two again; what is not at work holds no memory.
    assert len(runs) == 3 and not any(run() for run in runs)

    monkeypatch.undo()
    twin, twin_gradients, twin_random = first_step(pipeline_num=2, calibrate=False)
    assert torch.equal(random, twin_random)
    for name, gradient in twin_gradients.items():
        assert torch.equal(gradients[name], gradient), name
    for name, value in twin.state_dict().items():  # running statistics, too
        assert torch.equal(model.state_dict()[name], value), name

    notes, twin_notes = json.loads(model.plan.notes), json.loads(twin.plan.notes)
    assert notes["tried_micro_batches"] == [
        {"micro_batches": 4, "run_ns": 5_000_000},
        {"micro_batches": 2, "run_ns": 4_000_000},
        {"micro_batches": 1, "run_ns": 5_000_000},
    ]
    assert "Micro-batches tried: 4: 5 ms, 2: 4 ms (taken), 1: 5 ms.\n" in _C.plan.show(model.plan)
    # Memory does not depend on what was measured.
    assert model.plan.step.peak_bytes == twin.plan.step.peak_bytes
    assert model.plan.bucket_bytes == twin.plan.bucket_bytes
    assert notes["memory_limit_bytes"] == twin_notes["memory_limit_bytes"]
    assert model.plan.made_for.global_batch == twin.plan.made_for.global_batch
    bytes_of_stage = model.plan.stages[0].predicted.peak_bytes
    assert bytes_of_stage == twin.plan.stages[0].predicted.peak_bytes
    assert notes["parts"]["compute_ns"] == model.plan.iteration_ns


def test_the_planner_takes_no_number_that_the_model_refuses():
    with pytest.raises(PlanError, match="over a single value per channel"):
        first_step(calibrate=False, pipeline_num=8)


def test_a_number_that_cannot_be_is_not_run(monkeypatch):
    """As it does not fit, or as the model refuses it."""
    plan_begins_with(4, monkeypatch)
    runs_take({4: 5, 2: 4, 1: 3}, monkeypatch)
    with_micro_batches = candidates.Planner.with_micro_batches

    def not_one(planner, plan, count):
        return with_micro_batches(planner, plan, count) if count > 1 else None

    monkeypatch.setattr(candidates.Planner, "with_micro_batches", not_one)
    assert first_step()[0].plan.micro_batches == 2


def test_a_number_that_was_asked_for_stays(monkeypatch):
    runs_take({4: 5, 2: 4, 1: 3}, monkeypatch)
    for settings in ({"pipeline_num": 4}, {"min_pipeline": 4, "max_pipeline": 4}):
        model, *_ = first_step(**settings)
        assert model.plan.micro_batches == 4
        assert "tried_micro_batches" not in json.loads(model.plan.notes)
    plan_begins_with(4, monkeypatch)
    assert first_step(calibrate=False)[0].plan.micro_batches == 4
    assert first_step(min_pipeline=2)[0].plan.micro_batches == 2


def test_one_stage_is_not_given_more(monkeypatch):
    plan_begins_with(2, monkeypatch)
    runs_take({4: 1, 2: 2, 1: 3}, monkeypatch)
    model, *_ = first_step()
    assert model.plan.micro_batches == 2
    assert len(json.loads(model.plan.notes)["tried_micro_batches"]) == 2


class Halving(nn.Module):
    """Writes a parameter whenever it runs, as pruning or a norm of weights does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.mul_(0.5)
        return self.linear(x).square().mean()


def test_a_parameter_that_the_model_writes_is_put_back():
    plain = Halving()
    before = plain.linear.weight.detach().clone()
    model = RaNNCModule(plain, config=Config(self_check=False, pipeline_num=1))
    model(torch.randn(4, 3)).backward()
    assert torch.equal(plain.linear.weight, before / 2)
