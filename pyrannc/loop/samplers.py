"""``DistributedSampler(dataset)`` knows the ranks of a job where torch.distributed has no group."""

import torch.distributed
from torch.utils.data import DistributedSampler

from pyrannc.job import process


def install(ranks) -> None:
    """Once per process. ``ranks()``: the number of ranks, and which of them this is."""

    def of_ranks(theirs, sampler, dataset, num_replicas=None, rank=None, *args, **kwargs):
        distributed = torch.distributed
        has_group = distributed.is_available() and distributed.is_initialized()
        if num_replicas is None and rank is None and not has_group:
            num_replicas, rank = ranks()
        theirs(sampler, dataset, num_replicas, rank, *args, **kwargs)

    process.replace_method(DistributedSampler, "__init__", of_ranks)
