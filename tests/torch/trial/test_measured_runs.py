"""Running a plan before the first step: it predicts, and nothing else is different afterwards."""

import pytest
import torch
from torch import nn

from pyrannc import _C, Config, RaNNCModule
from pyrannc.trial import measured_runs


def first_step(**config):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = RaNNCModule(model, optimizer, Config(pipeline_num=2, self_check=False, **config))
    model(torch.randn(6, 8)).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return model, gradients, torch.get_rng_state()


def test_numbers_are_the_same_with_and_without():
    model, gradients, random = first_step(calibrate=True)
    twin, twin_gradients, twin_random = first_step(calibrate=False)
    assert torch.equal(random, twin_random)
    for name, gradient in twin_gradients.items():
        assert torch.equal(gradients[name], gradient), name
    for name, value in twin.state_dict().items():  # running statistics, too
        assert torch.equal(model.state_dict()[name], value), name


def test_both_predictions_are_kept():
    step = first_step(calibrate=True)[0].plan.step
    assert step.ns > 0 and step.from_operators_ns > 0
    assert step.ns != step.from_operators_ns
    step = first_step(calibrate=False)[0].plan.step
    assert step.ns > 0 and step.from_operators_ns is None


def test_the_prediction_follows_the_speed_of_the_ranks():
    model, *_ = first_step(calibrate=True)
    step_ns = model.plan.step.ns
    predict = model._deployment.speed._predict
    assert predict([1.0]).ns == pytest.approx(step_ns, abs=2)
    slower = [predict([factor]).ns - step_ns for factor in (2.0, 3.0)]
    # All but what the runs took beyond what follows from their parts.
    assert slower[0] > 0 and slower[1] == pytest.approx(2 * slower[0], abs=4)
    assert first_step(calibrate=False)[0]._deployment.speed is None


class OneRank:
    host = "a"

    def all_gather(self, item):
        return [item]


def runs_of(monkeypatch, seconds, patience):
    """How many runs are made and summarized, where they take ``seconds``, and no other is made."""
    left, summarized = list(seconds), []
    monkeypatch.setattr(measured_runs, "_run", lambda *_: {"seconds": left.pop(0)})
    monkeypatch.setattr(_C.predict, "summarize", lambda _, runs: summarized.extend(runs))
    measured_runs.measure(None, ([], [], []), [], None, [1], OneRank(), None, patience)
    assert not left
    return len(summarized)


def test_quick_plans_run_more_often(monkeypatch):
    patience = measured_runs.Patience(least=2, most=7, enough_s=1)
    assert runs_of(monkeypatch, [0.1] * 7, patience) == 7
    assert runs_of(monkeypatch, [0.3] * 4, patience) == 4
    # After one of more than two seconds there is no other; the first may be longer.
    assert runs_of(monkeypatch, [3], patience) == 1
    patience = measured_runs.Patience(least=3, most=7, enough_s=1, first_s=20)
    assert runs_of(monkeypatch, [3, 2.5], patience) == 2
