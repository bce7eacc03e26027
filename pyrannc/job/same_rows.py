"""Ranks that all train on the same rows."""

import hashlib

import torch

from pyrannc import log

#: Of a tensor that are compared; the rest of a large one differs where the beginning does.
#: tuned by: a safety margin: batches that differ do so in their first rows.
#: without it: the first call would go through all of a batch of images once more.
_MOST_COMPARED_BYTES = 1 << 20


def warn_of_same_rows(tensors, batch_dims, world) -> None:
    """Says once, on rank 0, that all ranks have the same batch: a loader without a sampler.

    Collective.

    Args:
        tensors: Of the first call, in the order of its arguments.
        batch_dims: The dimension of each that holds the rows, or None.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor, dim in zip(tensors, batch_dims, strict=True):
        if dim is not None:
            flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            part = flat[: _MOST_COMPARED_BYTES // tensor.itemsize]
            digest.update(repr(tuple(tensor.shape)).encode())
            digest.update(part.cpu().view(torch.uint8).numpy().tobytes())
    if len(set(world.all_gather(digest.digest()))) == 1 and world.rank == 0 and world.size > 1:
        log.warn(
            "deploy",
            f"all {world.size} ranks have fed the same rows, so each of them counts "
            f"{world.size} times. Give every rank rows of its own: "
            "DataLoader(..., sampler=torch.utils.data.DistributedSampler(dataset, "
            "pyrannc.get_world_size(), pyrannc.get_rank()))",
        )
