"""What forward() reads from its file or a closure is what it is now, not at the first capture."""

import argparse
import importlib
import sys
import types

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCError, RaNNCModule
from pyrannc.capture.attributes.around import places_read, read_by_calls
from pyrannc.running.guards.around import Around

SCALE = [1.0]
ALPHA = 1.0
ARGS = argparse.Namespace(beta=1.0)
OTHER = 5.0  # is read by nobody
linear = 7.0  # nor this: the code names an attribute of a module
CALLS = 0


def scaled(x):
    return x * ALPHA


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return (lambda y: scaled(y) * SCALE[0] * ARGS.beta)(self.linear(x))


class Counting(Reading):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return super().forward(x)


def made(settings):
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) * settings["alpha"]

    return Local()


class Nesting(Reading):
    """Of two functions, one called with the result of the other, only the inner one was seen."""

    def forward(self, x):
        return scaled(unscaled(self.linear(x)))


def unscaled(x):
    return x


def set_scale(value, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", [value])


def set_alpha(value, monkeypatch):
    monkeypatch.setitem(globals(), "ALPHA", value)


def set_args(value, monkeypatch):
    monkeypatch.setattr(ARGS, "beta", value)


@pytest.mark.parametrize("change", [set_scale, set_alpha, set_args])
@pytest.mark.parametrize("kind", [Reading, Counting])
def test_a_number_of_the_file_is_that_of_the_call(kind, change, monkeypatch):
    model = kind()
    wrapped = RaNNCModule(model, config=Config(calibrate=False))
    x = torch.randn(2, 4)
    for value in (1.0, 3.0, 3.0, -2.0, 1.0):
        change(value, monkeypatch)
        with torch.no_grad():
            torch.testing.assert_close(wrapped(x), model.linear(x) * value)


def test_a_number_of_a_closure_is_that_of_the_call():
    settings = {"alpha": 1.0}
    model = made(settings)
    wrapped = RaNNCModule(model, config=Config(calibrate=False))
    x = torch.randn(2, 4)
    for value in (1.0, 3.0):
        settings["alpha"] = value
        with torch.no_grad():
            torch.testing.assert_close(wrapped(x), model.linear(x) * value)


def test_what_forward_counts_is_no_reason_to_capture_anew():
    wrapped = RaNNCModule(Counting(), config=Config(calibrate=False))
    wrapped(torch.randn(2, 4))
    before = CALLS
    for _ in range(3):
        wrapped(torch.randn(2, 4))
    assert before == CALLS


def around(model):
    functions, names = read_by_calls(model)
    return dict(Around(places_read(model, functions, names), names).now())


def test_only_what_the_code_names_is_read():
    names = {name.rpartition(".")[2] for name in around(Reading())}
    assert names == {"SCALE", "ALPHA", "beta", "forward", "scaled"}
    names = {name.rpartition(".")[2] for name in around(Nesting())}
    assert names >= {"ALPHA", "scaled", "unscaled"}
    found = around(made({"alpha": 2.0, "t": {}}))
    assert [each for each in found if "reads" in each] == [
        "made.<locals>.Local.forward reads settings.alpha"
    ]
    assert not around(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))


def test_settings_of_a_namespace_count_and_of_other_objects_what_the_code_names():
    holder, other = types.SimpleNamespace(a=1, b=torch.ones(1), c="x"), Counting()
    assert [each for each in around(made(holder)) if "reads" in each] == [
        f"made.<locals>.Local.forward reads settings.{name}" for name in "abc"
    ]
    assert [each for each in around(made(other)) if "reads" in each] == [
        "made.<locals>.Local.forward reads settings"  # the module itself
    ]


def test_a_function_that_is_replaced_is_that_of_the_call(monkeypatch):
    model = Reading()
    wrapped = RaNNCModule(model, config=Config(calibrate=False))
    x = torch.randn(2, 4)
    with torch.no_grad():
        wrapped(x)
        monkeypatch.setitem(globals(), "scaled", lambda x: 3 * x)
        torch.testing.assert_close(wrapped(x), model(x))
        monkeypatch.setattr(Reading, "forward", lambda self, x: self.linear(x) - 1)
        torch.testing.assert_close(wrapped(x), model(x))


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """A module of a script's, in a file beside it."""
    (tmp_path / "chosen_numbers.py").write_text(
        "ALPHA, LAST, OTHER = 1.0, None, 5.0\n\n\ndef scaled(x):\n    return x * ALPHA\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("chosen_numbers")
    monkeypatch.setitem(globals(), "chosen_numbers", found)
    yield found
    del sys.modules["chosen_numbers"]


class ReadingModule(Reading):
    def forward(self, x):
        return self.linear(x) * chosen_numbers.ALPHA  # noqa: F821


class CallingModule(Reading):
    def forward(self, x):
        return chosen_numbers.scaled(self.linear(x))  # noqa: F821


@pytest.mark.parametrize("kind", [ReadingModule, CallingModule])
def test_a_number_of_a_module_that_a_script_imports_is_that_of_the_call(chosen, kind):
    model = kind()
    wrapped = RaNNCModule(model, config=Config(calibrate=False))
    x = torch.randn(2, 4)
    for chosen.ALPHA in (1.0, 3.0, -2.0):
        with torch.no_grad():
            torch.testing.assert_close(wrapped(x), model.linear(x) * chosen.ALPHA)
    found = around(model)
    assert found["chosen_numbers.ALPHA"] == -2.0
    assert "chosen_numbers.OTHER" not in found


def test_a_tensor_left_in_such_a_module_is_an_error_when_it_is_used(chosen):
    class Leaving(Reading):
        def forward(self, x):
            chosen_numbers.LAST = self.linear(x)  # noqa: F821
            return chosen_numbers.LAST.square().mean()  # noqa: F821

    RaNNCModule(Leaving(), config=Config(calibrate=False))(torch.randn(2, 4)).backward()
    with pytest.raises(RaNNCError, match=r"'chosen_numbers\.LAST' is outside of the model"):
        chosen.LAST + 1
