"""Accelerate, Trainer and Lightning take each rank for the only process of the job: all of them
would write the same files, most of them without the model.

Here their methods that write checkpoints do so on rank 0, which has the whole
model, and return on the others when it is done. Every rank calls them.
"""

import sys

from pyrannc import live_deployments
from pyrannc.state import summon


def of_accelerate(theirs, accelerator, *args, **kwargs):
    """Whether to write it asks the number of this process."""
    world = live_deployments.world()
    if world is None or accelerator.num_processes > 1:
        return theirs(accelerator, *args, **kwargs)
    states = sys.modules["accelerate.state"]
    kinds = (states.PartialState, states.AcceleratorState)
    shared = [vars(kind)["_shared_state"] for kind in kinds]
    before = [each["process_index"] for each in shared]
    try:
        for each in shared:
            each["process_index"] = world.rank
        result = theirs(accelerator, *args, **kwargs)
    finally:
        for each, index in zip(shared, before, strict=True):
            each["process_index"] = index
    world.barrier()
    return result


def of_trainer(theirs, trainer, *args, **kwargs):
    """What it writes of a model that it knows is more than a state_dict."""
    wrapped = trainer.model
    if getattr(wrapped, "_deployment", None) is None or trainer.args.world_size > 1:
        return theirs(trainer, *args, **kwargs)

    def write():
        trainer.model = wrapped.module
        try:
            theirs(trainer, *args, **kwargs)
        finally:
            trainer.model = wrapped

    return summon.on_rank_0(wrapped, "save_model()", write)


def of_lightning(theirs, strategy, *args, **kwargs):
    world = live_deployments.world()
    if world is None or world.rank == 0:
        theirs(strategy, *args, **kwargs)
    if world is not None:
        world.barrier()
