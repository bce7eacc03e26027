"""Ranks that are started again in one store, as torchrun's --max-restarts does."""

import threading

from torch import distributed

from pyrannc import CommError
from pyrannc.job import fresh_store

RANKS = 3


def met(store, ranks=range(RANKS), timeout_s=60):
    """Of each of the ranks the part of the store that it got, or why it got none."""
    found, faults = {}, {}

    def run(rank):
        try:
            found[rank] = fresh_store.of_this_start(store, rank, RANKS, timeout_s)
        except CommError as error:
            faults[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found, faults


def test_what_an_earlier_start_has_left_is_not_read():
    store = distributed.HashStore()
    for start in range(3):
        found, faults = met(store)
        assert not faults
        assert not found[0].check(["port"])
        found[0].set("port", str(start))
        assert [found[rank].get("port").decode() for rank in range(RANKS)] == [str(start)] * RANKS


def test_a_start_in_which_not_all_came_is_no_hindrance():
    store = distributed.HashStore()
    assert "rank 1 did not come" in met(store, ranks=(0, 2), timeout_s=0.3)[1][0]
    assert "rank 0 did not come" in met(store, ranks=(1,), timeout_s=0.1)[1][1]
    assert not met(store)[1]


def test_words_of_ranks_that_have_ended_are_answered_in_vain():
    store = distributed.HashStore()
    store.set("rannc/word/1", "of before")
    store.set("rannc/word/2", "of before")
    assert not met(store)[1]
