"""Tensors that forward() leaves in attributes, or around the model, are not of an earlier call."""

import copy

import pytest
import torch
from torch import nn

from pyrannc import Config, RaNNCError, RaNNCModule


class Leaving(nn.Module):
    """Keeps its tensors in attributes: one that there was, one that there was not, and a dict."""

    def __init__(self):
        super().__init__()
        self.linear, self.aux, self.seen = nn.Linear(4, 4), None, {"h": None, "name": "x"}

    def forward(self, x):
        if isinstance(self.aux, torch.Tensor):
            raise AssertionError("forward() is captured with the model as it was")
        h = self.linear(x)
        self.aux, self.mean, self.seen["h"] = h.abs().mean(), h.mean(), h
        return h.square().mean()


def wrapped():
    model = nn.Sequential(Leaving())
    return model[0], RaNNCModule(model, config=Config(calibrate=False))


@pytest.mark.parametrize("use", [float, bool, torch.abs, copy.copy, lambda x: x + 1])
@pytest.mark.parametrize("read", [lambda m: m.aux, lambda m: m.mean, lambda m: m.seen["h"]])
def test_who_uses_one_is_told(use, read):
    leaving, model = wrapped()
    model(torch.randn(2, 4)).backward()
    with pytest.raises(
        RaNNCError, match=r"'0\.\w+' of the model is a tensor that forward\(\) leaves"
    ):
        use(read(leaving))
    assert leaving.seen["name"] == "x"


def test_what_a_script_sets_before_a_call_is_not_what_it_reads_after_it():
    leaving, model = wrapped()
    for _ in range(2):
        leaving.aux = 0.0
        model(torch.randn(2, 4)).backward()
        with pytest.raises(RaNNCError, match="leaves in an attribute"):
            leaving.aux + 1


def test_another_capture_finds_what_the_model_had():
    _, model = wrapped()
    model(torch.randn(2, 4)).backward()
    model(torch.randn(2, 2, 4)).backward()  # is captured anew


def test_the_whole_model_runs_its_own_python():
    leaving, model = wrapped()
    x = torch.randn(2, 4)
    model(x).backward()
    with model.summon():
        leaving(x)
        assert float(leaving.mean) == float(leaving.linear(x).mean())
    model(x)
    with pytest.raises(RaNNCError, match="leaves in an attribute"):
        float(leaving.mean)


def test_a_model_without_its_plan_has_its_own_again():
    leaving, model = wrapped()
    model(torch.randn(2, 4)).backward()
    model.undeploy()
    assert leaving.aux is None
    assert not hasattr(leaving, "mean")
    assert leaving.seen == {"h": None, "name": "x"}


class Notes:
    """An object of a class of the user's, as such that collect statistics are."""

    def __init__(self):
        self.mean, self.calls, self.inner, self.all = None, 0, None, []


class Noting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.notes, self.made = nn.Linear(4, 4), Notes(), None
        self.notes.inner = Notes()

    def forward(self, x):
        h = self.linear(x)
        self.notes.mean, self.notes.inner.mean = h.mean(), h.abs().mean()
        self.notes.all.append(h.mean())
        self.made = Notes()
        self.made.mean = h.mean()
        return h.square().mean()


@pytest.mark.parametrize(
    "read",
    [
        lambda m: float(m.notes.mean),
        lambda m: m.notes.inner.mean + 1,
        lambda m: sum(m.notes.all),
        lambda m: m.made.mean,
    ],
)
def test_objects_of_other_classes_are_no_place_to_leave_one_either(read):
    """One rank had a tensor of the self-check in them, the others one of the trace."""
    noting = Noting()
    model = RaNNCModule(noting, config=Config(calibrate=False))
    for _ in range(2):
        model(torch.randn(2, 4)).backward()
        with pytest.raises(RaNNCError, match=r"of the model is a tensor that forward\(\) leaves"):
            read(noting)
    model(torch.randn(2, 2, 4)).backward()  # is captured anew, with the model's own objects
    model.undeploy()
    assert noting.notes.mean is noting.notes.inner.mean is noting.made is None
    assert not noting.notes.all


def test_what_an_object_counts_and_forward_computes_with_is_refused():
    class Counting(Noting):
        def forward(self, x):
            self.notes.calls += 1
            return self.linear(x).mean() * (1.0 if self.notes.calls < 9 else 0.5)

    model = RaNNCModule(Counting(), config=Config(calibrate=False))
    with pytest.raises(RaNNCError, match=r"would compute something else: 'notes\.calls'"):
        model(torch.randn(2, 4))


KEPT, LAST = [], {}


class LeavingAround(nn.Module):
    """Leaves its tensors outside: in a list, a dict and a global of its file, in a list of its
    class, in a variable of the function that has made it, and in a list that it was given."""

    every = []  # noqa: RUF012

    def __init__(self, given):
        super().__init__()
        self.linear, self.given = nn.Linear(4, 4), given

    def forward(self, x):
        global ANEW
        h = self.linear(x)
        KEPT.append(h)
        LAST["h"] = ANEW = h
        self.every.append(h)
        self.given.append(h)
        return h.square().mean()


def with_a_variable(given):
    seen = None

    class Leaving(LeavingAround):
        def forward(self, x):
            nonlocal seen
            seen = x.mean() * self.linear.weight.mean()
            return super().forward(x)

    return Leaving(given), lambda given: seen


@pytest.mark.parametrize(
    ("read", "where"),
    [
        (lambda given: KEPT[-1], r"test_attributes_left\.KEPT' is outside"),
        (lambda given: LAST["h"], r"test_attributes_left\.LAST' is outside"),
        (lambda given: ANEW, r"test_attributes_left\.ANEW' is outside"),
        (
            lambda given: LeavingAround.every[0],
            r"test_attributes_left\.LeavingAround\.every' is outside",
        ),
        (sum, "'given' of the model"),
        (None, "reads seen' is outside"),
    ],
)
def test_what_stands_around_the_model_is_no_place_to_leave_one_either(read, where):
    given = []
    inner, variable = with_a_variable(given)
    model = RaNNCModule(inner, config=Config(calibrate=False))
    for rows in (2, 2, 3):
        model(torch.randn(rows, 4)).backward()
        with pytest.raises(RaNNCError, match=where):
            (read or variable)(given) + 1
    model(torch.randn(2, 2, 4)).backward()  # is captured anew, as if nothing had been left
    model.undeploy()
    assert KEPT == LeavingAround.every == given == []
    assert LAST == {}
    assert variable(given) is None
    assert "ANEW" not in globals()


def test_a_list_that_the_script_empties_before_each_call_is_its_own_again():
    given = [1.0]
    model = RaNNCModule(with_a_variable(given)[0], config=Config(calibrate=False))
    for _ in range(2):
        given[:] = [2.0]
        model(torch.randn(2, 4)).backward()
        with pytest.raises(RaNNCError, match="leaves in an attribute"):
            sum(given)
    model.undeploy()
    assert given == [2.0]
