"""What an optimizer keeps in ``state``: an entry of each parameter; and, under names of its own,
what is of none, such as the count of steps that MADGRAD has in ``state["k"]``."""

import torch


def of_parameters(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, dict]:
    return {key: entry for key, entry in optimizer.state.items() if torch.is_tensor(key)}


def of_none(optimizer: torch.optim.Optimizer) -> dict:
    """The same on every rank, as all of them take the same steps."""
    return {key: value for key, value in optimizer.state.items() if not torch.is_tensor(key)}


def tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that its memory is taken by."""
    values = [value for entry in of_parameters(optimizer).values() for value in entry.values()]
    return [value for value in [*values, *of_none(optimizer).values()] if torch.is_tensor(value)]
