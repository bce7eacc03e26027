"""Work that each rank does for all: what goes wrong on one of them is raised on every one."""

import json

from pyrannc.errors import RaNNCError


def on_all(world, work) -> list:
    """What ``work()`` has given each rank, in JSON's types. Collective.

    Raises:
        RaNNCError: Of the lowest rank on which it failed, which is named; on every rank.
    """
    answer, cause = {}, None
    try:
        answer["result"] = work()
    except (RaNNCError, OSError, MemoryError) as error:
        answer["fault"], cause = str(error) or type(error).__name__, error
    except Exception as error:  # of the user's optimizer or module; the others wait for this rank
        answer["fault"], cause = f"{type(error).__name__}: {error}", error
    answers = [json.loads(item) for item in world.all_gather(json.dumps(answer).encode())]
    for rank, each in enumerate(answers):
        if "fault" in each:
            where = f"rank {rank}: " if world.size > 1 else ""
            raise RaNNCError(f"{where}{each['fault']}") from cause
    return [each["result"] for each in answers]


def on_rank_0(world, work):
    """What ``work()`` has given rank 0, in JSON's types, on every rank. Collective.

    Raises:
        RaNNCError: It failed there; on every rank.
    """
    return on_all(world, work if world.rank == 0 else lambda: None)[0]
