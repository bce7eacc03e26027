"""Which rank writes which tensor of the model, so that all write about as much."""

import dataclasses

import torch

from pyrannc.state import checkpoint


@dataclasses.dataclass(frozen=True)
class Layout:
    """Tensors under one name each.

    Attributes:
        writer: Rank that writes each tensor, by name.
        tied: Other names of these tensors: the name under which it is written.
    """

    writer: dict[str, int]
    tied: dict[str, str]

    def name(self, other: str) -> str:
        return self.tied.get(other, other)


def make(model: torch.nn.Module, ranks_of, size: int) -> dict:
    """The fields of a :class:`Layout`; on one rank, as ranks may list their modules in other
    orders.

    Args:
        ranks_of: Function that gives the ranks that hold a tensor.
        size: Ranks.
    """
    found = checkpoint.persistent(model)
    # A tied tensor has the first of its names in the model's order, as Hugging Face's libraries
    # have it, which leave out the others.
    in_order = dict(model.named_parameters(remove_duplicate=False))
    names = [name for name in in_order if name in found]
    names += [name for name in found if name not in in_order]
    first, tied, tensors = {}, {}, {}
    for name in names:
        main = first.setdefault(id(found[name]), name)
        if main != name:
            tied[name] = main
        else:
            tensors[name] = found[name]
    load, writer = [0] * size, {}
    for name in sorted(tensors, key=lambda name: -tensors[name].nbytes):  # the largest ones first
        writer[name] = min(ranks_of(tensors[name]), key=lambda rank: (load[rank], rank))
        load[writer[name]] += tensors[name].nbytes
    return {"writer": {name: writer[name] for name in tensors}, "tied": tied}
