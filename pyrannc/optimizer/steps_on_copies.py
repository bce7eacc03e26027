"""Steps of the user's optimizer on tensors of our own."""

import collections
import copy
import math
import time

import torch

from pyrannc import log
from pyrannc.job import elapsed
from pyrannc.optimizer.state import constructed_state, master_weights, param_names
from pyrannc.optimizer.step import fused
from pyrannc.state.released import is_released

#: Bytes of the parameters on whose copies an optimizer steps in calibration. A step touches several
#: copies of each, so only many of them are as far out of the caches as those of a model.
#: tuned by: `rannc run -n 4 benchmarks/predicted_and_measured.py`: the median error on two cores
#: went from 12 to 5 % with this step.
#: without it: an optimizer in the cache leaves the parameters of the next run there, too; with
#: more, calibration takes the memory of a model.
MOST_COPIED_BYTES = 32 << 20


def trial(optimizer, groups, held):
    """A copy of ``optimizer`` that steps on ``groups[g]``, tensors with gradients of their own.

    It shares options and implementation, but neither state, parameters nor the user's hooks.

    Args:
        held: The parameters for which they stand, by group.
    """
    copied = copy.copy(optimizer)
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if hasattr(optimizer, name):
            setattr(copied, name, collections.OrderedDict())
    copied.state = collections.defaultdict(dict)
    copied.is_tried = True
    fused.prefer_as(optimizer, copied)
    copied.param_groups = [
        {**group, **param_names.beside(group, parameters), "params": tensors}
        for group, tensors, parameters in zip(optimizer.param_groups, groups, held, strict=True)
    ]
    constructed_state.give(copied)
    return copied


def step(optimizer, copied):
    """One step of a trial(): by the class's own ``step``, as a learning-rate scheduler replaces
    that of the instance."""
    type(optimizer).step(copied)


def failed(optimizer, error):
    """Says that an optimizer cannot be tried, because of ``error``."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    log.info("deploy", f"a step of {type(optimizer).__name__} counts as nothing, because: {reason}")


class StepBesideRuns:
    """Steps as the optimizers will after each run of the plan, on copies of this rank's parameters.

    What an optimizer reads and writes drives the parameters out of the caches, and ranks that share
    a host's memory slow each other down: a step alone, or a run without one, is quicker.

    ``share``: the part of the parameters that this rank steps; ``masters``: as copies of 32 bits.

    Attributes:
        factor: The bytes of all parameters over those of the copies, of which there are at most
            ``MOST_COPIED_BYTES``. They are on ``device``.
    """

    def __init__(self, optimizers, parameters, device="cpu", share=1.0, masters=False):
        self._device = torch.device(device)
        self._copies = {}  # index into parameters: tensor
        index_of = {
            id(p): i for i, p in enumerate(parameters) if p.requires_grad and not is_released(p)
        }
        every, copied = 0, 0
        self._trials = []  # of each optimizer, which stands beside it
        for optimizer in optimizers:
            groups, held = [], []
            for group in optimizer.param_groups:
                groups.append([])
                held.append([])
                for parameter in group["params"]:
                    if id(parameter) not in index_of:
                        continue
                    every += share * parameter.nbytes
                    most = min(MOST_COPIED_BYTES - copied, math.ceil(share * parameter.nbytes))
                    part = _part(parameter, most)
                    if not part.numel():
                        continue
                    copied += part.nbytes
                    dtype = master_weights.stepped_dtype(part) if masters else part.dtype
                    tensor = torch.zeros_like(part, dtype=dtype, requires_grad=True, device=device)
                    self._copies[index_of[id(parameter)]] = tensor
                    groups[-1].append(tensor)
                    held[-1].append(parameter)
            self._trials.append((optimizer, trial(optimizer, groups, held)))
        self.factor = every / copied if copied else 0.0

    def step(self, gradients) -> int:
        """Processor time in ns; the time that passes where several threads compute; an
        accelerator's, for which the host waits.

        Args:
            gradients: Of the parameters, in their order; None where there is none.
        """
        if not self.factor:
            return 0
        given = []
        for index, tensor in self._copies.items():
            if gradients[index] is not None:
                short = gradients[index][: len(tensor)] if tensor.dim() else gradients[index]
                given.append((tensor, short))
        begin = self._now()
        for tensor, short in given:
            tensor.grad = short.to(tensor.dtype)
        try:
            for optimizer, copied in self._trials:
                step(optimizer, copied)
        except Exception as error:
            failed(optimizer, error)
            self.factor = 0.0
            return 0
        finally:
            for tensor in self._copies.values():
                tensor.grad = None
        return elapsed.ns_between(begin, self._now())

    def _now(self):
        if self._device.type == "cpu" and torch.get_num_threads() == 1:
            return time.thread_time_ns()
        return elapsed.now(self._device, may_wait=True)


def _part(parameter, most_bytes):
    """Its first rows, as many as fit into ``most_bytes``; a scalar as it is."""
    parameter = parameter.detach()
    if not parameter.dim() or not len(parameter):
        return parameter
    return parameter[: max(most_bytes, 0) * len(parameter) // max(parameter.nbytes, 1)]
