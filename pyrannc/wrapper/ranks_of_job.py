"""Who asks torch or Accelerate for the ranks where torch.distributed has no group gets those of the
job."""

import torch.distributed

from pyrannc import launch


def of_sampler(theirs, sampler, dataset, num_replicas=None, rank=None, *args, **kwargs):
    """``DistributedSampler(dataset)``, which torch refuses without a group; one of ours would be in
    the way of one that the script makes later."""
    distributed = torch.distributed
    has_group = distributed.is_available() and distributed.is_initialized()
    if num_replicas is None and rank is None and not has_group:
        num_replicas, rank = launch.get_world_size(), launch.get_rank()
    theirs(sampler, dataset, num_replicas, rank, *args, **kwargs)


def of_accelerate(theirs, state, cpu=False, **kwargs):
    """Whoever asks Accelerate who the ranks are, such as TrainingArguments, has met them; and where
    there is no accelerator the ranks are those of the CPU, without being asked for."""
    if launch.get_world_size() > 1:
        launch.init()
        cpu = cpu or not torch.accelerator.is_available()
    theirs(state, cpu, **kwargs)
