"""Optimizers that the model was not given, such as one made after wrapping."""

import weakref

from pyrannc import live_deployments, log
from pyrannc.optimizer import elementwise, per_number, user_optimizer
from pyrannc.optimizer.state import kept_state, whole_state
from pyrannc.optimizer.step import masters
from pyrannc.optimizer.step.participant import Participant
from pyrannc.ranks import gathered
from pyrannc.state import moving, tensor_parts
from pyrannc.state.released import is_released

#: State beyond what the plan has counted that is worth a warning.
#: tuned by: when a warning comes; nothing is decided by it.
#: without it: a counter for each parameter would be reported as memory that the plan lacks.
_SMALL_BYTES = 2**20


class LateOptimizers:
    """Those of a deployment's parameters that are found at their first step, or when their state is
    asked for or loaded before it.

    Then each is checked as one that is given. After its first step the memory of its state is
    compared with what the plan has counted.
    """

    def __init__(self, deployment):
        self._deployment = weakref.ref(deployment)
        self._known, self._seen = weakref.WeakSet(), weakref.WeakSet()
        self._late = weakref.WeakSet()
        self._in_order = []  # references to these, as they were found, which is so on every rank
        self._new = None

    def state_bytes(self) -> int:
        """Of their states on this rank; what the plan has counted for one that has not come yet."""
        held = sum(map(user_optimizer.state_bytes, self._late))
        return held or self._counted(self._deployment().model.parameters())

    def of_all_ranks(self) -> list:
        """Those that every rank still has, in the same order. Collective."""
        held = [reference() for reference in self._in_order]
        mine = [
            (number, type(each).__name__, len(each.param_groups))
            for number, each in enumerate(held)
            if each is not None
        ]
        everyones = map(set, gathered(self._deployment().world, mine))
        return [held[number] for number, *_ in sorted(set.intersection(*everyones))]

    def _counted(self, parameters) -> int:
        """What the plan has counted for the states of ``parameters`` on this rank."""
        task = self._deployment().task
        if not task.counts_state:
            return 0
        held = (p for p in parameters if p.requires_grad and not is_released(p))
        return round(task.config.opt_param_factor * sum(p.nbytes for p in held))

    def see(self, optimizer, says) -> None:
        """``optimizer`` steps, whatever it holds. One deployment ``says``, once: parameters that no
        model has. Nobody sums their gradients over the ranks, each of which trains its own copy."""
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        world = self._deployment().world
        if not says or world.size == 1 or world.rank:
            return
        if outside := live_deployments.outside(optimizer):
            sizes = ", ".join(str(list(each.shape)) for each in outside[:3])
            log.warn(
                "module",
                f"{type(optimizer).__name__} steps {len(outside)} parameters that no wrapped model "
                f"has, of shape {sizes}{', ...' if len(outside) > 3 else ''}: if their gradients "
                "are of this rank's rows alone, the ranks come apart. Make them a part of the "
                "model",
            )

    def find(self, optimizer) -> None:
        """``optimizer`` holds parameters of the deployment.

        Raises:
            ConfigError: It needs all parameters in one place.
        """
        if optimizer in self._known:
            return
        deployment = self._deployment()
        if all(given is not optimizer for given in deployment.task.optimizers):
            elementwise.check(optimizer, deployment.task.elementwise_optimizer)
            if deployment.sharded_steps or deployment.owners.shared():
                per_number.check(optimizer)
            if deployment.task.config.tensor_parallel > 1:
                per_number.check(optimizer, "tensor_parallel")
            if deployment.task.master_weights:
                masters.attach(optimizer)
            if not live_deployments.is_given(optimizer, deployment):  # nor one around it
                whole_state.install(optimizer)
                self._take_part(optimizer)
                self._late.add(optimizer)
                self._in_order.append(weakref.ref(optimizer))
                self._new = weakref.ref(optimizer)
        self._known.add(optimizer)

    def _take_part(self, optimizer):
        """One that was there before this plan has the states of all parameters, where they were;
        one that keeps something from the start on, as Adagrad does, has made it of parts."""
        for parameter, entry in kept_state.of_parameters(optimizer).items():
            if is_released(parameter):
                del optimizer.state[parameter]
            elif tensor_parts.is_part(parameter):
                for value in filter(tensor_parts.is_part, entry.values()):
                    tensor_parts.as_tensor(value)
                tensor_parts.cut_state(optimizer, parameter, parameter.place_of_part)
        moving.state_to_parameters(optimizer)

    def has_stepped(self, optimizer) -> None:
        """Compares, after the first step of one that was found, its state with what was counted."""
        if self._new is None or self._new() is not optimizer:
            return
        self._new = None
        needs = user_optimizer.state_bytes(optimizer)
        counted = self._counted(p for group in optimizer.param_groups for p in group["params"])
        text = (
            f"{type(optimizer).__name__} was not given to RaNNCModule: its state takes "
            f"{needs / 2**20:.1f} MiB on this rank, for which the plan has counted "
            f"{counted / 2**20:.1f} MiB"
        )
        if needs <= counted + _SMALL_BYTES:
            log.info("deploy", text)
            return
        log.warn(
            "deploy",
            f"{text}, so a step may take more than mem_limit_gb allows. Give the optimizer to "
            "RaNNCModule, or set opt_param_factor to the copies of each parameter that it keeps "
            f"(now {self._deployment().task.config.opt_param_factor:g})",
        )


class Late(Participant):
    """Lets the deployments find the optimizers that step their parameters."""

    def before(self, step):
        for place, each in enumerate(() if step.is_tried else live_deployments.in_order()):
            each.late_optimizers.see(step.optimizer, says=place == 0)
        for deployment in step.deployments:
            deployment.late_optimizers.find(step.optimizer)
        return step.deployments or None

    def after(self, step, begun):
        for deployment in begun:
            deployment.late_optimizers.has_stepped(step.optimizer)


def found_before(torchs, optimizer, *args, **kwargs):
    """torch's ``state_dict()`` or ``load_state_dict()`` of an optimizer that has not stepped yet:
    what belongs to other ranks, and masters, would be taken for its own."""
    name = torchs.__name__
    if name not in vars(optimizer):
        for deployment in live_deployments.of_optimizer(optimizer):
            deployment.late_optimizers.find(optimizer)
        if name in vars(optimizer):
            return getattr(optimizer, name)(*args, **kwargs)
    try:
        return torchs(optimizer, *args, **kwargs)
    finally:
        masters.end_loading(optimizer)
