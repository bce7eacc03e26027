"""What is deployed."""

from dataclasses import dataclass

import torch

from pyrannc.optimizer import around_another


@dataclass(frozen=True)
class Task:
    """A captured model, who steps it, and what the user wants of it.

    Attributes:
        model: The user's ``nn.Module``.
        captured: What the first call has captured of it.
        front_ends: :class:`~pyrannc.wrapper.front_ends.FrontEnds`, of which one has captured it.
        optimizers: Of its parameters, in the order in which the user gave them.
        config: :class:`pyrannc.Config`.
        outputs: ``_C.plan.Outputs``, which outputs are sent.
        outside_loss: "mean" or "sum", what the user makes of outputs that hold rows.
        padding: :class:`~pyrannc.capture.arguments.padding.Padding` of arguments.
        hooks: :class:`~pyrannc.hooks.module_hooks.ModuleHooks` of the model.
        elementwise_optimizer: The user says that a step treats each parameter by itself.
        counts_state: The plan counts state of an optimizer that may come later: none was given, and
            the first call trains.
        zero: The replicas of a stage share the state of the optimizers: True, False or "auto".
        master_weights: The optimizers step copies of 32 bits of what has 16.
        plan_file: Path of the plan to run; None to make one.
        world: The communicator of the job.
        device: Where this rank computes.
        home: Where the model was at its first call, and is as long as it is planned for.
        value_source: :class:`~pyrannc.materialize.values.Values`, of a model whose tensors get
            theirs once each rank holds its part; None where they have them.
    """

    model: object
    captured: object
    front_ends: object
    optimizers: tuple
    config: object
    outputs: object
    outside_loss: str
    padding: object
    hooks: object
    elementwise_optimizer: bool
    counts_state: bool
    zero: bool | str
    master_weights: bool
    plan_file: str | None
    world: object
    device: torch.device
    home: torch.device
    value_source: object = None

    @property
    def all_optimizers(self) -> list:
        """Also those that one of them is around."""
        return around_another.with_inner(self.optimizers)

    @property
    def lacks_values(self) -> bool:
        """Whether the model cannot compute before each rank holds its part."""
        return self.value_source is not None and bool(self.value_source.missing)
