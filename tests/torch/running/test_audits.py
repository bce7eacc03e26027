"""Audits find what no guard sees, and nothing where nothing has changed."""

import contextvars
import string

import pytest
import state_changes
import torch
from torch import nn

from pyrannc import _C, Config, RaNNCError, RaNNCModule
from pyrannc.capture.attributes import around
from pyrannc.running.guards import attributes
from pyrannc.running.guards.attributes import Attributes

pytestmark = pytest.mark.usefixtures("audits")


@pytest.mark.parametrize("name", state_changes.CHANGES)
def test_without_the_guard_of_attributes_an_audit_finds_each_change(name, monkeypatch):
    monkeypatch.setattr(Attributes, "now", lambda self, call=None: ())
    _, change = state_changes.CHANGES[name]
    assert state_changes.run(change) == state_changes.AUDITED


def nothing(*given, **named):
    return ()


def without_methods(names, functions, values):
    return names


#: A part of the guard of attributes, what is there without it, and a change that only it sees.
MUTANTS = {
    "modules": (attributes, "_readable", nothing, state_changes.setting("beta", 5.0)),
    "globals": (
        around,
        "_add_globals",
        nothing,
        lambda net: state_changes.set_global("FACTOR", 5.0),
    ),
    "closures": (around, "_add_variables", nothing, lambda net: state_changes.change_closed(5.0)),
    "classes": (around, "_add_class", nothing, lambda net: type(net).rates.update(a=5.0)),
    "functions": (
        around,
        "_add_own",
        nothing,
        lambda net: setattr(state_changes.with_attribute, "gain", 5.0),
    ),
    "methods of modules": (
        around,
        "_add_class",
        nothing,
        lambda net: setattr(type(net), "swapped", lambda self, x: x * 5),
    ),
    "methods of objects": (
        attributes,
        "with_names_in_methods",
        without_methods,
        lambda net: setattr(net.rated_by, "_last_lr", [5.0]),
    ),
}


@pytest.mark.parametrize("part", MUTANTS)
def test_without_a_part_of_the_guard_an_audit_finds_the_change(part, monkeypatch):
    # With it the change is seen before the call: tests/dist/running/test_audits.py.
    *mutant, change = MUTANTS[part]
    monkeypatch.setattr(*mutant)
    assert state_changes.run(change) == state_changes.AUDITED


class Reading(nn.Module):
    """Computes with what no guard sees."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros(()))
        self.aux, self.mask = None, None

    def forward(self, x):
        self.steps += 1
        if self.mask is None:
            self.mask = torch.ones(4)
        h = self.drop(self.norm(self.linear(x))) * self.mask * float(getattr(string, "GAIN", 1))
        self.aux = h.mean()
        return h.square().mean()


@pytest.fixture(params=["torchscript", "export"])
def model(request, monkeypatch):
    if request.param == "torchscript" and not hasattr(_C.frontend, "Tracer"):
        pytest.skip("needs torch's tracer")
    monkeypatch.delattr(string, "GAIN", raising=False)
    return RaNNCModule(Reading(), config=Config(calibrate=False, frontend=request.param))


def test_the_second_call_of_each_kind_is_audited_and_later_ones_when_that_costs_little(model):
    counts = []
    calls = ((3, True), (3, True), (5, True), (5, False), (3, False), (3, True), (3, False))
    for rows, train in calls:
        model.train(train)
        model(torch.ones(rows, 4))
        audits = model._deployment.audits
        counts.append(audits.count)
    assert counts == [0, 1, 1, 1, 1, 1, 2]  # a number of rows that is new is a capture
    audits.seconds = 0.0
    model(torch.ones(3, 4))
    assert audits.count == 3
    assert model.metrics()["audits"] == 3 and model.metrics()["audit_ns"] > 0


def test_an_error_names_the_node_its_line_and_what_is_in_doubt(model, monkeypatch):
    for _ in range(4):
        model(torch.ones(3, 4))
    monkeypatch.setattr(string, "GAIN", "3", raising=False)
    model(torch.ones(3, 4))
    with pytest.raises(RaNNCError, match=r"(?s)then: node .*1\.0.*\n  now:  node .*3\.0") as raised:
        model.audit()
    assert f"{__file__}" in str(raised.value)
    assert "right up to forward pass 3; the results of those after it are in" in str(raised.value)
    monkeypatch.setattr(string, "GAIN", "1", raising=False)
    assert model.audit() == 1


def test_a_change_before_the_second_call_is_an_error_in_that_call(monkeypatch):
    model = RaNNCModule(Reading(), config=Config(calibrate=False))
    model(torch.ones(3, 4))
    monkeypatch.setattr(string, "GAIN", "3", raising=False)
    with pytest.raises(RaNNCError, match=r"forward\(\) no longer computes what was captured"):
        model(torch.ones(3, 4))


def test_a_model_that_can_no_longer_be_captured_is_an_error(monkeypatch):
    model = RaNNCModule(Reading(), config=Config(calibrate=False))
    model(torch.ones(3, 4))
    monkeypatch.setattr(string, "GAIN", "much", raising=False)
    with pytest.raises(RaNNCError, match="cannot be captured any more"):
        model(torch.ones(3, 4))


def test_audits_can_be_left_out(monkeypatch):
    model = RaNNCModule(Reading(), config=Config(calibrate=False, audit="off"))
    for gain in "123":
        monkeypatch.setattr(string, "GAIN", gain, raising=False)
        model(torch.ones(3, 4))
    assert model._deployment.audits.count == 0
    with pytest.raises(RaNNCError, match="no longer computes"):  # when asked, all the same
        model.audit()


def test_a_context_variable_is_captured_as_the_caller_has_it():
    # A capture runs in a thread of its own, and took the default.
    gain = contextvars.ContextVar("gain", default=1.0)

    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * gain.get()

    plain = Scaled(4, 2)
    gain.set(3.0)
    model = RaNNCModule(plain, config=Config(calibrate=False))
    with torch.no_grad():
        torch.testing.assert_close(model(torch.ones(3, 4)), plain(torch.ones(3, 4)))
