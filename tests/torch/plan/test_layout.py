import pytest
import torch

from pyrannc import _C
from pyrannc.errors import PlanError

Layout = _C.plan.Layout


def test_moves_of_a_layout_move_tensors():
    # A fused QKV of 4 x 6, whole on rank 0; then Q, K and V by halves of their columns on two
    # ranks, of which rank 2 shares its part with rank 3.
    whole = torch.arange(24.0).reshape(4, 6)

    def columns(half):
        return [([0, 2 * part + half], [4, 1]) for part in range(3)]

    sharded = Layout(
        "qkv",
        [4, 6],
        [([1], columns(0), None), ([2], columns(1), (0, 5)), ([3], columns(1), (5, 12))],
    )
    arrays = {1: torch.empty(12), 2: torch.empty(5), 3: torch.empty(7)}
    for move in Layout.whole("qkv", [4, 6], [0]).moves(sharded):
        assert move.from_rank == 0
        for source, target, count in move.runs:
            numbers = whole.reshape(-1)[source : source + count]
            arrays[move.to_rank][target : target + count] = numbers
    assert torch.equal(arrays[1], whole[:, 0::2].T.reshape(-1))
    assert torch.equal(torch.cat([arrays[2], arrays[3]]), whole[:, 1::2].T.reshape(-1))


def test_a_layout_says_what_it_was_made_of():
    parts = [([0, 1], [([0], [3])], None), ([2], [([1], [4])], (1, 3))]
    layout = Layout("w", [5], parts)
    assert (layout.tensor, layout.shape, layout.parts) == ("w", [5], parts)
    assert layout == Layout("other", [5], parts[::-1])
    assert layout != Layout.whole("w", [5], [0, 1, 2])
    assert [layout.numel(rank) for rank in range(4)] == [3, 3, 2, 0]
    assert layout.holders(2) == [0, 1, 2]
    answers = {answer.rank: answer.runs for answer in Layout.whole("w", [5], [2, 1]).answers()}
    assert answers == {1: [(0, 0, 5)]}


def test_moves_of_one_rank():
    layout = Layout.whole("w", [5], [0])
    own = layout.moves(Layout.whole("w", [5], [0, 1, 2]), rank=1)
    assert [(move.from_rank, move.to_rank, move.numel, move.runs) for move in own] == [
        (0, 1, 5, [(0, 0, 5)])
    ]


def test_a_part_outside_of_the_tensor_is_an_error():
    with pytest.raises(PlanError, match=r"tensor 'w' of shape \[5\] on rank 3: the box \[2:6\]"):
        Layout("w", [5], [([3], [([2], [4])], None)])
