"""Gradients of backward passes under ``no_sync()``, until they are summed over the replicas."""

import weakref

import torch

from pyrannc import _C
from pyrannc.errors import RaNNCError
from pyrannc.state import named_tensors, torch_private
from pyrannc.state.released import is_released


def _plane(deployment):
    """The ranks of this rank's place, one of each group that computes layers together."""
    comm, places = deployment.comm, len(deployment.group)
    if places == 1:
        return comm
    return _C.comm.subset(comm, [*range(comm.rank % places, comm.size, places)])


class UnsummedGradients:
    """What a deployment keeps. Who needs the sums calls :meth:`check` first."""

    def __init__(self, deployment):
        task = deployment.task
        self.kept = _C.runtime.KeptGradients(str(task.device), task.config.float32_sums)
        self._deployment = weakref.ref(deployment)

    def check(self, what):
        """Raises RaNNCError that names ``what`` if something is kept, or was lost."""
        if self.kept.lost:
            raise RaNNCError(
                f"{what}: gradients kept under no_sync() were lost in a backward that failed. Call "
                "zero_grad() of the module, and begin the step again."
            )
        if self.kept.passes:
            raise RaNNCError(
                f"{what}: gradients of {self.kept.passes} backward passes under no_sync() were "
                "never summed over the replicas: run the last forward and backward of a step "
                "outside no_sync(), or call allreduce_grads() before. zero_grad() of the module "
                "drops them."
            )

    def add_to_gradients(self):
        """Sums what is kept over the replicas and adds it to ``.grad``. Collective."""
        deployment = self._deployment()
        tensors = named_tensors.tensors(deployment.model)
        found = self.kept.sum(_plane(deployment))
        with torch_private.without_subclasses():  # also of parts
            for name, gradient in found.items():
                parameter = tensors[name]
                if is_released(parameter):  # it was borrowed, and its owners have the sum, too
                    continue
                if parameter.grad is None:
                    # Laid out like the parameter, as autograd does it.
                    alike = gradient.stride() == parameter.stride()
                    parameter.grad = (
                        gradient if alike else torch.empty_like(parameter).copy_(gradient)
                    )
                else:
                    parameter.grad.add_(gradient)
