"""A store of torch.distributed in which ranks meet that have been started again.

torchrun keeps one store for all starts of its ranks (``--max-restarts``), and what one start leaves
there stays: the next one would read where processes that have ended could be reached.
"""

import secrets
import time

from torch import distributed

from pyrannc.errors import CommError

#: Between two looks into the store.
#: tuned by: a bound on what a start takes longer: two looks, against seconds for imports.
#: without it: ranks that wait ask the store all the time.
_POLL_S = 0.01


def of_this_start(store, rank: int, size: int, timeout_s: float):
    """A part of ``store`` that no earlier start has written to. Collective.

    Each rank leaves a word of its own, and rank 0 answers that word with the name of the part; so
    what an earlier start has left answers nobody.

    Raises:
        CommError: Some ranks have not come in time; names them.
    """
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        name = secrets.token_hex(8)
        _tell(store, name, size, deadline)
    else:
        word = secrets.token_hex(8)
        answer = f"rannc/answer/{rank}/{word}"
        store.set(f"rannc/word/{rank}", word)
        while not store.check([answer]):
            _wait(deadline, [0])
        name = store.get(answer).decode()
        store.set(f"rannc/heard/{name}/{rank}", "")
    return distributed.PrefixStore(f"rannc/start/{name}", store)


def _tell(store, name, size, deadline):
    """Until all have heard it: the word that is there may be one of an earlier start."""
    left = set(range(1, size))
    answered = {}
    while True:
        left = {rank for rank in left if not store.check([f"rannc/heard/{name}/{rank}"])}
        if not left:
            return
        for rank in left:
            if not store.check([f"rannc/word/{rank}"]):
                continue
            word = store.get(f"rannc/word/{rank}").decode()
            if answered.get(rank) != word:
                store.set(f"rannc/answer/{rank}/{word}", name)
                answered[rank] = word
        _wait(deadline, sorted(left))


def _wait(deadline, ranks):
    if time.monotonic() > deadline:
        several = "s" if len(ranks) > 1 else ""
        raise CommError(
            f"rank{several} {', '.join(map(str, ranks))} did not come to torchrun's store in time."
            "\n  Look at what it printed first, or give it longer: pyrannc.init(timeout_s=...)."
        )
    time.sleep(_POLL_S)
