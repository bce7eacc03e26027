"""What the launcher says of this process, compared with the world that was found.

Processes that each find themselves alone, though a launcher has started several, would all train,
each for itself.
"""

import os
import sys

from pyrannc.errors import CommError
from pyrannc.job import started


def check(world) -> None:
    """Raises CommError where the launcher, or torch.distributed, counts other processes than
    ``world``, naming both."""
    for launcher, size, rank in started.innermost_first():
        if size in os.environ and rank in os.environ:
            said = _number(size), _number(rank)
            if said != (world.size, world.rank):
                _refuse(
                    world,
                    f"{launcher} started this process as rank {said[1]} of {said[0]} "
                    f"({rank}, {size})",
                )
            break
    check_group(world)


def check_group(world) -> None:
    """The same for a group of torch.distributed, which is all that mp.spawn leaves."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    said = distributed.get_world_size(), distributed.get_rank()
    if said != (world.size, world.rank):
        _refuse(world, f"torch.distributed has this process as rank {said[1]} of {said[0]}")


def _refuse(world, said):
    found = (
        "it is alone in its job, as far as RaNNC can see, and would train by itself"
        if world.size == 1
        else f"RaNNC has found rank {world.rank} of {world.size}"
    )
    raise CommError(
        f"{said}, but {found}.\n  Start the script with mpirun, `rannc run` or torchrun. (To train "
        "in one process on purpose, unset these variables.)"
    )


def _number(name):
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise CommError(
            f"{name}={text!r} is no number, so it is not known which ranks there are"
        ) from None
