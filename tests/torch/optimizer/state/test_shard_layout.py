"""Ranges of a bucket, and what they are of its parameters."""

from pyrannc.optimizer.state.shard_layout import Bucket


def test_ranges_are_equal_and_cut_parameters_where_they_end():
    # 10 + 1 + 4 numbers over three ranks: five each, of which the first parameter has two ranges.
    bucket = Bucket(("a", "b", "c"), (0, 10, 11, 15), (1, 4, 6), 5)
    assert bucket.pieces(0) == {1: (0, 5), 4: (5, 10)}
    assert bucket.pieces(1) == {6: (0, 1)}
    assert bucket.pieces(2) == {6: (0, 4)}


def test_the_last_rank_has_what_is_left():
    bucket = Bucket(("a", "b"), (0, 3, 7), (0, 1, 2), 3)
    assert bucket.pieces(0) == {0: (0, 3)}
    assert bucket.pieces(1) == {1: (0, 3), 2: (3, 4)}
    # Fewer numbers than ranks leave some without any.
    assert Bucket(("a",), (0, 1), (0, 1), 1).pieces(0) == {0: (0, 1)}
