"""What stands in the place of functions of torch, accelerate, transformers and lightning, and stays
there for the life of the process: one table, which docs/process-wide-effects.md shows.

What is replaced while a model is captured stands beside what needs it, in ``pyrannc/capture``, and
is taken back.
"""

import dataclasses
import operator
from collections.abc import Callable

from pyrannc.job import process
from pyrannc.loop import distributed_checkpoint, writers
from pyrannc.optimizer import gradient_norm, scheduled_rates, shared_overflow
from pyrannc.optimizer.step import late
from pyrannc.wrapper import on_rank_0, ranks_of_job

#: When a row is put in.
WRAPPED, FIRST_CALL = "`RaNNCModule(...)`", "first call of a model"
INTEGRATION = "import of `pyrannc.integrations.accelerate` or `.transformers`"


@dataclasses.dataclass(frozen=True)
class Replaced:
    """One of them.

    Attributes:
        module: Where the library has it.
        spot: A function of the module, or a method of one of its classes.
        ours: ``ours(theirs, *args)`` is called in its place, on whichever thread.
        when: It is put in; of a module that is not imported then, once it is.
        releases: Of the library, in which a test has seen that it is reached.
        reason: What would happen without it.
        others: How one gets the library's own.
    """

    module: str
    spot: str
    ours: Callable
    when: str
    releases: str
    reason: str
    others: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.spot}"

    def put(self, module) -> None:
        """Into ``module``. Once for each spot."""
        *kind, name = self.spot.split(".")
        owner = operator.attrgetter(*kind)(module) if kind else module
        if self.module == _CLIPPING:  # torch has wrapped them in no_grad()
            process.replace_in_torch(getattr(owner, name), self.ours)
        elif kind:
            process.replace_method(owner, name, self.ours)
        else:
            process.replace_function(owner, name, self.ours)


_CLIPPING = "torch.nn.utils.clip_grad"
_CHECKPOINT = "torch.distributed.checkpoint.state_dict"
_TORCH = "2.13 to 2.15"
_OF_OTHERS = "the library's own runs for all models that are not wrapped"
_NORM = "a rank sees the gradients of its own stages alone, and would clip differently"
_STATE = "a rank has a part of the state, and torch would take it for the whole"
_FILES = "each rank is for it the only process: all would write one file, most without the model"
_JOINED = "torch joins the parts of ranks by names, and finds no model on ranks other than 0"

TABLE = (
    Replaced(_CLIPPING, "clip_grad_norm_", gradient_norm.clip, WRAPPED, _TORCH, _NORM, _OF_OTHERS),
    Replaced(
        _CLIPPING, "_get_total_norm", gradient_norm.total_norm, WRAPPED, _TORCH, _NORM, _OF_OTHERS
    ),
    Replaced(
        _CLIPPING, "_clip_grads_with_norm_", gradient_norm.own_only, WRAPPED, _TORCH,
        "torch fails where this rank has no gradient", _OF_OTHERS,
    ),
    Replaced(
        _CLIPPING, "clip_grad_value_", gradient_norm.own_only, WRAPPED, _TORCH,
        "torch fails where this rank has no gradient", _OF_OTHERS,
    ),
    Replaced(
        "torch.amp.grad_scaler", "GradScaler._unscale_grads_", shared_overflow.unscale, WRAPPED,
        _TORCH, "ranks would disagree about a step that is left out", _OF_OTHERS,
    ),
    Replaced(
        "torch.utils.data.distributed", "DistributedSampler.__init__", ranks_of_job.of_sampler,
        WRAPPED, _TORCH, "torch refuses it without a group of torch.distributed",
        "give it `num_replicas` and `rank`",
    ),
    Replaced(
        "torch.optim.optimizer", "Optimizer.state_dict", late.found_before, FIRST_CALL, _TORCH,
        _STATE, _OF_OTHERS,
    ),
    Replaced(
        "torch.optim.optimizer", "Optimizer.load_state_dict", late.found_before, FIRST_CALL, _TORCH,
        _STATE, _OF_OTHERS,
    ),
    Replaced(
        "torch", "save", on_rank_0.save, FIRST_CALL, _TORCH,
        "a script for one process calls it on every rank: all would write one file",
        "a file that is open already, or a buffer, is written as ever",
    ),
    *(
        Replaced(_CHECKPOINT, spot, ours, FIRST_CALL, _TORCH, _JOINED, _OF_OTHERS)
        for spot, ours in distributed_checkpoint.replaced().items()
    ),
    Replaced(
        "accelerate.state", "PartialState.__init__", ranks_of_job.of_accelerate, INTEGRATION,
        "1.15", "it would take each rank for the only process, which trains on all rows",
        "on one process its own runs",
    ),
    Replaced(
        "accelerate.accelerator", "Accelerator.save_state", writers.of_accelerate, FIRST_CALL,
        "1.15", _FILES, _OF_OTHERS,
    ),
    Replaced(
        "accelerate.accelerator", "Accelerator.save_model", writers.of_accelerate, FIRST_CALL,
        "1.15", _FILES, _OF_OTHERS,
    ),
    Replaced(
        "transformers.trainer", "Trainer._save", writers.of_trainer, FIRST_CALL, "5.24", _FILES,
        _OF_OTHERS,
    ),
    Replaced(
        "transformers.optimization", "AdafactorSchedule.get_lr", scheduled_rates.rates, FIRST_CALL,
        "5.24", "it asks the first parameter of each group, of which a rank may have none",
        "where every group has a parameter its own runs",
    ),
    *(
        Replaced(
            f"{package}.strategies.strategy", f"Strategy.{name}", writers.of_lightning, FIRST_CALL,
            "2.6", _FILES, _OF_OTHERS,
        )
        for package in ("lightning.pytorch", "pytorch_lightning")
        for name in ("save_checkpoint", "remove_checkpoint")
    ),
)  # fmt: skip


def install(when: str) -> None:
    """Puts in the rows of ``when``; once, however often it is called."""
    rows = {}
    for row in TABLE:
        if row.when == when:
            rows.setdefault(row.module, []).append(row)
    for module, each in rows.items():
        process.when_imported(module, lambda found, each=each: [row.put(found) for row in each])
