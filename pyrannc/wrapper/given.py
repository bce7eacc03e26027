"""What the constructor of a RaNNCModule was given."""

import dataclasses
import os
from collections.abc import Mapping

from pyrannc import _C, launch, log
from pyrannc.capture.arguments.padding import Padding
from pyrannc.config import Config
from pyrannc.errors import ConfigError
from pyrannc.optimizer import around_another, elementwise, per_number, user_optimizer
from pyrannc.optimizer.state import named_state, whole_state
from pyrannc.optimizer.step import masters
from pyrannc.original import names as original


@dataclasses.dataclass(frozen=True)
class Given:
    """The arguments of :class:`pyrannc.RaNNCModule`, with what follows from them alone.

    Attributes:
        config: :class:`pyrannc.Config`.
        optimizers: In the order in which the user gave them.
        outputs: ``_C.plan.Outputs``, which outputs are sent.
        padding: :class:`~pyrannc.capture.arguments.padding.Padding`.
        gather_inputs: Whether every rank has a batch of its own; so it is where there is one rank.
        zero: True, False, or "auto" where the state of the optimizers can be shared out.
    """

    config: Config
    optimizers: tuple
    load_deployment: object
    batch_dims: object
    outputs: object
    outside_loss: str
    elementwise_optimizer: bool
    padding: Padding
    gather_inputs: bool
    zero: bool | str
    master_weights: bool

    def attach(self, model) -> None:
        """Checks the optimizers, and lets them do what a wrapped ``model`` needs."""
        for each in self.optimizers:
            around_another.complete(each)
            user_optimizer.check(each, model)
            elementwise.check(each, self.elementwise_optimizer)
            named_state.mark(each, model)
            whole_state.install(each)
            if self.master_weights:
                masters.attach(each)


def read(
    wrapper,
    of_original,
    *,
    optimizer,
    config,
    outputs,
    outside_loss,
    pad,
    pad_side,
    pad_to,
    gather_inputs,
    zero,
    **as_they_are,
) -> Given:
    """The arguments of ``wrapper``, the class; ``of_original``: those that only RaNNC 0.7 had.

    Raises:
        ConfigError, TypeError: One of them cannot be; says which, and what can.
    """
    if outside_loss not in ("mean", "sum"):
        raise ConfigError(f"outside_loss is {outside_loss!r}; it must be 'mean' or 'sum'")
    if outputs not in ("loss", "all"):
        raise ConfigError(f"outputs = {outputs!r}: expected 'loss' or 'all'")
    _check_kinds(pad=pad, gather_inputs=gather_inputs, **as_they_are)
    if not isinstance(config, Config | None):
        raise TypeError(
            f"config is {config!r}: the third argument of RaNNCModule is a pyrannc.Config; "
            "write others as gather_inputs=..., load_deployment=..."
        )
    zero = per_number.wanted(of_original.pop("enable_zero", zero))
    notes = original.take_arguments(of_original, wrapper)
    config = config or Config.from_env()
    log.configure(config.log_level)
    if launch.get_rank() == 0:
        for note in [*notes, *config.notes]:
            log.warn("module", note)
        if config.show_config_items:
            print("\n".join(f"{name} = {value!r}" for name, value in config.changed().items()))
    optimizers = user_optimizer.listed(optimizer)
    return Given(
        config=config,
        optimizers=optimizers,
        outputs=getattr(_C.plan.Outputs, outputs),
        outside_loss=outside_loss,
        padding=Padding(pad, pad_side, pad_to),
        gather_inputs=gather_inputs or launch.get_world_size() == 1,
        zero=per_number.possible(zero, optimizers),
        **as_they_are,
    )


def _check_kinds(*, elementwise_optimizer, master_weights, gather_inputs, pad, batch_dims,
                 load_deployment) -> None:  # fmt: skip
    """Raises ConfigError for arguments that could only be misunderstood: a word is always true."""
    switches = {
        "elementwise_optimizer": elementwise_optimizer,
        "master_weights": master_weights,
        "gather_inputs": gather_inputs,
    }
    for name, value in switches.items():
        if value not in (False, True):
            raise ConfigError(f"{name} is {value!r}; it must be True or False")
    if not isinstance(pad, Mapping | None):
        raise ConfigError(f'pad is {pad!r}; it must name arguments, as {{"input_ids": 0}}')
    if not isinstance(load_deployment, str | os.PathLike | None):
        raise ConfigError(f"load_deployment is {load_deployment!r}; it must be the path of a plan")
