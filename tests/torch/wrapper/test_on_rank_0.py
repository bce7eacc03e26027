"""The empty state_dict() of ranks other than 0 says so where a script needs what is not in it."""

import collections
import copy
import io

import pytest
import torch
from torch import nn

from pyrannc import RaNNCError
from pyrannc.wrapper import on_rank_0
from pyrannc.wrapper.on_rank_0 import ON_RANK_0, StateOnRank0


@pytest.fixture
def state(monkeypatch):
    monkeypatch.setattr(on_rank_0, "_told", [False])
    return StateOnRank0(3)


def test_it_is_an_empty_dict_that_can_be_copied(state):
    for each in (state, copy.deepcopy(state), state.copy(), copy.copy(state)):
        assert isinstance(each, StateOnRank0) and each == {} and not each
        assert each.get("a.weight") is None and "a.weight" not in each
    buffer = io.BytesIO()
    torch.save([state], buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == [{}]
    assert not on_rank_0._told[0]


def test_what_it_lacks_is_an_error(state):
    with pytest.raises(RaNNCError, match=r"gave rank 3 no 'a.weight'[\s\S]*rank0_only=False"):
        state["a.weight"]
    for strict in (True, False):
        with pytest.raises(RaNNCError, match=r"rank 3, which is empty[\s\S]*rank0_only=False"):
            nn.Linear(2, 2).load_state_dict(state, strict=strict)


@pytest.mark.parametrize(
    "go_through",
    [list, dict, lambda s: [*s.values()], lambda s: {k: v.cpu() for k, v in s.items()}],
)
def test_one_warning_names_the_line_that_goes_through_it(state, go_through, capfd):
    for _ in range(2):
        assert not go_through(state)
    text = capfd.readouterr().err
    assert text.count("test_on_rank_0.py:") == 1 and "of which rank 3 has nothing" in text


def test_a_file_is_left_to_rank_0(state, tmp_path):
    saved = []

    def theirs(obj, f, *args, **kwargs):
        saved.append(f)

    of_outer = on_rank_0.given_to(3, collections.OrderedDict(n_averaged=torch.tensor(2)))
    assert list(of_outer) == ["n_averaged"]
    for obj in (
        state,
        [copy.deepcopy(of_outer)],
        {"epoch": 1, "models": [state]},
        {"optimizer": {ON_RANK_0: True}},
    ):
        on_rank_0.save(theirs, obj, tmp_path / "state.pt")
        on_rank_0.save(theirs, obj, str(tmp_path / "state.pt"))
    assert not saved
    whole, buffer = {"a.weight": torch.ones(2)}, io.BytesIO()
    on_rank_0.save(theirs, whole, tmp_path / "state.pt")
    on_rank_0.save(theirs, state, buffer)
    assert saved == [tmp_path / "state.pt", buffer]
