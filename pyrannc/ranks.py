"""What the ranks of a job tell each other beside tensors. All of these are collective."""

import pickle

from pyrannc import _C
from pyrannc.errors import RaNNCError


def gathered(world, value) -> list:
    """The value that each rank has given, which may be pickled."""
    return [pickle.loads(each) for each in world.all_gather(pickle.dumps(value))]


def of_rank(root: int, world, value):
    """The value that rank ``root`` has given, on every rank."""
    return pickle.loads(world.broadcast(pickle.dumps(value) if world.rank == root else b"", root))


def any_of(world, flag) -> bool:
    """Whether it is so on some rank."""
    return any(gathered(world, bool(flag)))


def first_fault(world, fault) -> tuple | None:
    """The lowest rank that has a fault, in words, and these words; None where none has one."""
    faults = gathered(world, fault or "")
    return next(((rank, text) for rank, text in enumerate(faults) if text), None)


def on_all(world, work) -> list:
    """What ``work()`` has given each rank.

    Raises:
        RaNNCError: Of the lowest rank on which it failed, which is named; on every rank.
    """
    result, fault, cause = None, "", None
    try:
        result = work()
    except (RaNNCError, OSError, MemoryError) as error:
        fault, cause = str(error) or type(error).__name__, error
    except Exception as error:  # of the user's optimizer or module; the others wait for this rank
        fault, cause = f"{type(error).__name__}: {error}", error
    answers = gathered(world, (result, fault))
    for rank, (_, text) in enumerate(answers):
        if text:
            where = f"rank {rank}: " if world.size > 1 else ""
            raise RaNNCError(f"{where}{text}") from cause
    return [each for each, _ in answers]


def on_rank(root: int, world, work):
    """What ``work()`` has given one rank, on every rank.

    Raises:
        RaNNCError: Of the kind that it raised there, on every rank.
    """
    result, cause, raised = None, None, None
    if world.rank == root:
        try:
            result = work()
        except RaNNCError as error:
            raised = type(error).__name__, str(error)
        except Exception as error:  # a fault of ours; the others wait for this rank
            raised = "RaNNCError", f"rank {root}: {type(error).__name__}: {error}"
            cause = error
    result, raised = of_rank(root, world, (result, raised))
    if raised is not None:
        kind, text = raised
        raise getattr(_C.util, kind)(text) from cause
    return result


def on_rank_0(world, work):
    """The same as :func:`on_all`, of rank 0 alone; its result comes to every rank."""
    return on_all(world, work if world.rank == 0 else lambda: None)[0]
