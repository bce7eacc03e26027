"""What takes part in a step: its order, and its end however the step goes."""

import pytest
import torch

from pyrannc.optimizer.step.participant import Lender, Participant
from pyrannc.optimizer.step.participants import PARTICIPANTS
from pyrannc.optimizer.step.step import Step


class Noted(Participant):
    def __init__(self, name, said, fails=""):
        self.name, self.said, self.fails = name, said, fails

    def _say(self, what):
        self.said.append(f"{what} {self.name}")
        if what == self.fails:
            raise ZeroDivisionError(what)

    def before(self, step):
        self._say("before")
        return self.name

    def after(self, step, begun):
        assert begun == self.name
        self._say("after")

    def failed(self, step, begun):
        assert begun == self.name
        self._say("failed")


class Lends(Lender):
    def __init__(self, said, fails=False):
        self.said, self.fails = said, fails

    def lend(self, step, lent):
        self.said.append("lend")
        lent.append("lent")
        if self.fails:
            raise ZeroDivisionError("lend")

    def take_back(self, step, lent):
        assert lent == ["lent"]
        self.said.append("take back")


def run(said, *participants, code=lambda *_: None, args=()):
    parameter = torch.nn.Parameter(torch.zeros(1))
    step = Step(torch.optim.SGD([parameter], lr=0.1), participants)
    try:
        return step.run(code, args, {})
    finally:
        assert not step._begun, "something has no end"


def test_they_begin_in_their_order_and_end_in_the_other_one():
    said = []
    result = run(said, Noted("a", said), Noted("b", said), code=lambda *_: said.append("step") or 3)
    assert said == ["before a", "before b", "step", "after b", "after a"]
    assert result == 3


@pytest.mark.parametrize(
    "where, expected",
    [
        ("step", "before a, before b, before c, failed c, failed b, failed a"),
        ("before", "before a, before b, failed a"),
        ("after", "before a, before b, before c, after c, after b, failed a"),
        # The end of one fails while the step does: those around it end all the same.
        ("failed", "before a, before b, before c, failed c, failed b, failed a"),
    ],
)
def test_whatever_has_begun_ends_once_wherever_a_step_fails(where, expected):
    said = []

    def code(*_):
        if where in ("step", "failed"):
            raise ZeroDivisionError("step")

    with pytest.raises(ZeroDivisionError, match=where):
        run(said, Noted("a", said), Noted("b", said, where), Noted("c", said), code=code)
    assert ", ".join(said) == expected


def test_what_has_begun_nothing_has_no_end():
    class Idle(Noted):
        def before(self, step):
            super().before(step)

    said = []
    run(said, Idle("a", said))
    with pytest.raises(ZeroDivisionError):
        run(said, Idle("a", said), Noted("b", said, "before"))
    assert said == ["before a", "before a", "before b"]


def test_what_is_lent_when_lending_fails_is_taken_back():
    said = []
    with pytest.raises(ZeroDivisionError, match="lend"):
        run(said, Noted("a", said), Lends(said, fails=True))
    assert said == ["before a", "lend", "take back", "failed a"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_closure_runs_outside_of_what_is_lent_and_of_nothing_else(fails):
    said = []

    def closure():
        said.append("closure")
        if fails:
            raise ZeroDivisionError("closure")
        return 5

    participants = Noted("timer", said), Lends(said), Noted("fused", said)
    with pytest.raises(ZeroDivisionError) if fails else pytest.MonkeyPatch.context():
        result = run(said, *participants, code=lambda _, closure: closure(), args=(closure,))
        assert result == 5
    end = "failed" if fails else "after"
    assert said == [
        "before timer", "lend", "before fused", "take back", "closure", "lend",
        *(["take back", f"{end} fused"]), f"{end} timer",
    ]  # fmt: skip


def test_the_order_is_that_of_the_table():
    names = [type(each).__name__ for each in PARTICIPANTS]
    # Checks and counts see the model as the user does; masters are of what is lent before them.
    assert names == [
        "Early", "Unsummed", "Late", "Penalties", "Count", "Timer", "HiddenGradients", "Parts",
        "Shards", "Masters", "Fused",
    ]  # fmt: skip
