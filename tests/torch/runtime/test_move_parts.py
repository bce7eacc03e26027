"""Parts of tensors that go from the ranks that hold them to those that want them."""

import pytest
import torch
from pipeline import run_ranks

from pyrannc import _C, errors

Layout = _C.plan.Layout


def flat(whole, layout, rank):
    """The part of a whole tensor that a rank has, box by box."""
    for ranks, boxes, kept in layout.parts:
        if rank in ranks:
            pieces = [
                whole[tuple(slice(b, b + n) for b, n in zip(*box, strict=True))].reshape(-1)
                for box in boxes
            ]
            found = torch.cat(pieces)
            return found[slice(*kept)].clone() if kept else found
    return None


def moved(whole, start, end, ranks=4, copies=1):
    """What each rank has in the end of several tensors like ``whole``."""

    def one_rank(comm):
        items, wanted = [], []
        for copy in range(copies):
            held = flat(whole + copy, start, comm.rank)
            there = flat(whole + copy, end, comm.rank)
            wanted.append((there, None if there is None else torch.zeros_like(there)))
            items.append((start, end, held, wanted[-1][1]))
        _C.runtime.move_parts(comm, items, list(range(comm.size)))
        return wanted

    for found in run_ranks(ranks, one_rank):
        for expected, got in found:
            assert expected is got is None or torch.equal(expected, got)


SHAPE = [6, 8]
WHOLE = torch.arange(48.0).view(6, 8)
LAYOUTS = {
    "one rank": Layout.whole("w", SHAPE, [2]),
    "two ranks": Layout.whole("w", SHAPE, [1, 3]),
    "all ranks": Layout.whole("w", SHAPE, [0, 1, 2, 3]),
    # A fused weight, cut by heads: each rank has columns of three places.
    "columns": Layout(
        "w",
        SHAPE,
        [
            ([rank], [([0, 2 * rank], [6, 1]), ([0, 2 * rank + 1], [6, 1])], None)
            for rank in range(4)
        ],
    ),
    "ranges": Layout(
        "w",
        SHAPE,
        [([rank], [([0, 0], SHAPE)], (13 * rank, min(13 * rank + 13, 48))) for rank in range(4)],
    ),
    "ranges of rows": Layout(
        "w",
        SHAPE,
        [
            ([0], [([0, 0], [2, 8])], (0, 7)),
            ([2], [([0, 0], [2, 8])], (7, 16)),
            ([1, 3], [([2, 0], [4, 8])], None),
        ],
    ),
}


@pytest.mark.parametrize("start", LAYOUTS)
@pytest.mark.parametrize("end", LAYOUTS)
def test_each_layout_is_made_of_each(start, end):
    moved(WHOLE, LAYOUTS[start], LAYOUTS[end])


def test_several_tensors_go_in_one_message():
    start, end = Layout.whole("w", [600, 800], [1]), Layout.whole("w", [600, 800], [0, 1])
    moved(torch.randn(600, 800), start, end, ranks=2, copies=5)


def test_numbers_that_nobody_holds_and_wrong_lengths_are_errors():
    half = Layout("w", SHAPE, [([0], [([0, 0], [3, 8])], None)])

    def one_rank(comm, numbers=24, dtype=torch.float32):
        held, wanted = torch.zeros(numbers, dtype=dtype), torch.zeros(48)
        _C.runtime.move_parts(comm, [(half, Layout.whole("w", SHAPE, [0]), held, wanted)], [0])

    with pytest.raises(errors.PlanError, match="'w'"):
        run_ranks(1, one_rank)
    with pytest.raises(errors.RaNNCError, match="rank 0 holds has 24 numbers, but 23 lie"):
        run_ranks(1, lambda comm: one_rank(comm, numbers=23))
    with pytest.raises(errors.RaNNCError, match="of Double where it is held, and of Float where"):
        run_ranks(1, lambda comm: one_rank(comm, dtype=torch.float64))
