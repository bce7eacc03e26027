"""What an optimizer keeps in ``state``: an entry of each parameter; and, under names of its own,
what is of none, such as the count of steps that MADGRAD has in ``state["k"]``."""

import hashlib
import pickle

import torch

from pyrannc.errors import RaNNCError
from pyrannc.ranks import gathered


def of_parameters(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, dict]:
    return {key: entry for key, entry in optimizer.state.items() if torch.is_tensor(key)}


def of_none(optimizer: torch.optim.Optimizer) -> dict:
    """The same on every rank, as all of them take the same steps."""
    return {key: value for key, value in optimizer.state.items() if not torch.is_tensor(key)}


def compare_of_none(optimizer: torch.optim.Optimizer, comm, what: str) -> None:
    """What is of no parameter is the same on every rank, and one rank's is saved. Collective.

    Raises:
        RaNNCError: It is not, as what is kept under the place of a parameter in its group, where
            each rank has others; on every rank.
    """
    mine = {key: _digest(value) for key, value in of_none(optimizer).items()}
    everyones = gathered(comm, mine)
    for rank, theirs in enumerate(everyones):
        for key, value in theirs.items():  # a rank without parameters may keep less
            if everyones[0].get(key) != value:
                raise RaNNCError(
                    f"{what}: {type(optimizer).__name__} keeps '{key}' in its state, which is of "
                    f"no parameter, and is not the same on ranks 0 and {rank}.\n  Keep what is of "
                    "a parameter under the parameter itself, as `self.state[p]`."
                )


def _digest(value) -> str:
    return hashlib.blake2b(pickle.dumps(_plain(value)), digest_size=8).hexdigest()


def _plain(value):
    """Without what is another in equal values: strides, the memory that is shared, the device."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        content = value.detach().cpu().contiguous().view(-1)
        return str(value.dtype), tuple(value.shape), content.view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return [(key, _plain(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return repr(value) if isinstance(value, bool | int | float | str) else type(value).__name__


def tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that its memory is taken by."""
    values = [value for entry in of_parameters(optimizer).values() for value in entry.values()]
    return [value for value in [*values, *of_none(optimizer).values()] if torch.is_tensor(value)]
