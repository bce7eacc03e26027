"""Ranks that all train on the same rows."""

import hashlib

import torch

from pyrannc import log
from pyrannc.errors import ConfigError
from pyrannc.ranks import gathered

#: Of a tensor that are compared; the rest of a large one differs where the beginning does.
#: tuned by: a safety margin: batches that differ do so in their first rows.
#: without it: the first call would go through all of a batch of images once more.
_MOST_COMPARED_BYTES = 1 << 20

#: Rows of whole numbers that are all different, from which on ranks do not have them by chance.
#: tuned by: one-hot labels of four classes in one order on two ranks: one chance in 24.
#: without it: embeddings of classes that are one-hot would count once for each rank.
_ROWS_BY_CHANCE = 4


def warn_of_same_rows(tensors, batch_dims, world) -> None:
    """Says once, on rank 0, that all ranks have the same batch: a loader without a sampler.

    Collective.

    Args:
        tensors: Of the first call, in the order of its arguments.
        batch_dims: The dimension of each that holds the rows, or None.
    """
    having = [each for each, dim in zip(tensors, batch_dims, strict=True) if dim is not None]
    digest = b"".join(map(_digest, having))
    if len(set(gathered(world, digest))) == 1 and world.rank == 0 and world.size > 1:
        log.warn(
            "deploy",
            f"all {world.size} ranks have fed the same rows, so each of them counts "
            f"{world.size} times. Give every rank rows of its own: "
            "DataLoader(..., sampler=torch.utils.data.DistributedSampler(dataset, "
            "pyrannc.get_world_size(), pyrannc.get_rank()))",
        )


def refuse_same_argument(call, names, batch_dims, said, world) -> None:
    """An argument that was taken for rows, because it has as many entries, and is the same on all
    ranks while others differ: embeddings of classes, of which there are as many as rows.

    Collective.

    Args:
        call: The first one.
        names: Of its tensors.
        batch_dims: The dimension of each that holds the rows, or None.
        said: Indices of those of which the user has said so.

    Raises:
        ConfigError: Names it; on every rank.
    """
    having = [index for index, dim in enumerate(batch_dims) if dim is not None]
    mine = b"".join(_digest(call.tensors[index]) for index in having)
    ranks = gathered(world, mine)
    size = len(mine) // max(len(having), 1)
    if world.size == 1 or len(set(map(len, ranks))) > 1:
        return
    same = [
        len({rank[place * size : (place + 1) * size] for rank in ranks}) == 1
        for place in range(len(having))
    ]
    if all(same):  # a loader without a sampler, of which warn_of_same_rows() tells
        return
    for index, is_same in zip(having, same, strict=True):
        if is_same and index not in said and _has_other_rows(call.tensors[index]):
            raise ConfigError(
                f"{call.paths[index]} is the same on all ranks, while others differ. It is "
                f"taken for rows, as it has as many: one process would see it {world.size} "
                "times.\n  Where it has no rows, say RaNNCModule(..., batch_dims="
                f"{{{names[index]!r}: None}}); where these are rows, batch_dims="
                f"{{{names[index]!r}: {batch_dims[index]}}}."
            )


def _has_other_rows(tensor) -> bool:
    """Whether ranks do not have the same by chance, or for no reason, as labels and masks."""
    if not tensor.is_floating_point() or tensor.numel() == 0 or not tensor.dim():
        return False
    rows = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach()[:, None]
    different = len(torch.unique(rows, dim=0))
    if torch.equal(rows, rows.round()):  # labels, unless they all differ
        return rows.shape[1] > 1 and different == len(rows) >= _ROWS_BY_CHANCE
    return different > 1


def _digest(tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    part = flat[: _MOST_COMPARED_BYTES // tensor.itemsize]
    digest = hashlib.blake2b(repr(tuple(tensor.shape)).encode(), digest_size=8)
    digest.update(part.cpu().view(torch.uint8).numpy().tobytes())
    return digest.digest()
