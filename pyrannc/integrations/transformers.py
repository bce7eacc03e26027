"""Trainer of transformers: ``from pyrannc.integrations.transformers import Trainer``.

The rest of the script stays. ``Seq2SeqTrainer`` is here, too, and :func:`with_rannc` makes one of
any other class, such as one of your own.
"""

import contextlib
import os

import torch
import transformers
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from pyrannc import launch
from pyrannc.errors import ConfigError
from pyrannc.integrations import accelerate
from pyrannc.module import RaNNCModule, end_plans_of
from pyrannc.state import pretrained, summon
from pyrannc.wrapper import on_all_ranks

_REFUSED = ("torch_compile", "fsdp", "deepspeed", "fp16", "jit_mode_eval")


class _WithRaNNC:
    """What a Trainer does otherwise. ``rannc_config``: :class:`pyrannc.Config`; ``rannc_settings``:
    other arguments of :class:`pyrannc.RaNNCModule`, such as ``{"pad": {"input_ids": 0}}``."""

    def __init__(self, *args, rannc_config=None, rannc_settings=None, **kwargs):
        launch.init()
        self._rannc_config, self._rannc_settings = rannc_config, rannc_settings
        given = kwargs.get("args", args[1] if len(args) > 1 else None)
        for name in _REFUSED:
            if getattr(given, name, None):
                raise ConfigError(
                    f"TrainingArguments({name}=...) does not work with RaNNC's Trainer, which cuts "
                    "and runs the model itself.\n  Leave it out."
                )
        model = kwargs.get("model", args[0] if args else None)
        if isinstance(model, torch.nn.Module):  # which another Trainer may have trained
            end_plans_of(model)
        super().__init__(*args, **kwargs)
        # A model adds up the losses of all ranks' tokens, and divides by the number of all.
        self.args.average_tokens_across_devices = True

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        accelerate.adopt(self.accelerator, self._rannc_config, self._rannc_settings)

    def _rannc_module(self):
        """The wrapped model; None before it is wrapped."""
        return self.model_wrapped if isinstance(self.model_wrapped, RaNNCModule) else None

    def _move_model_to_device(self, model, device):
        """It stays where it is until each rank takes its part: no device need hold the whole, and
        one without values has nothing to move."""

    def _wrap_model(self, model, training=True, dataloader=None):
        wrapped = self._rannc_module()
        return wrapped if wrapped is not None and wrapped.module is model else model

    def _prepare_for_training(self, *args, **kwargs):
        """Callbacks, and what follows train(), have the model itself, as with a plain Trainer."""
        found = super()._prepare_for_training(*args, **kwargs)
        on_all_ranks.lend(self.model_wrapped)
        return found

    @contextlib.contextmanager
    def _with_model(self, model):
        """Inside, ``model`` is asked in place of the Trainer's."""
        before, self.model = self.model, model
        try:
            yield
        finally:
            self.model = before

    def compute_loss(self, *args, **kwargs):
        """Some call their model beside the one that they are given, such as DPO's without its
        adapters; that call, too, is one of all ranks."""
        wrapped = self._rannc_module()
        if wrapped is None:
            return super().compute_loss(*args, **kwargs)
        with self._with_model(_CalledOnAllRanks(wrapped)):
            return super().compute_loss(*args, **kwargs)

    def prediction_step(self, *args, **kwargs):
        wrapped = self._rannc_module()
        if wrapped is None or not getattr(self.args, "predict_with_generate", False):
            return super().prediction_step(*args, **kwargs)
        with self._with_model(wrapped):
            return super().prediction_step(*args, **kwargs)

    def save_model(self, output_dir=None, _internal_call=False):
        wrapped = self._rannc_module()
        if wrapped is None or wrapped._deployment is None:
            return super().save_model(output_dir, _internal_call)
        save = super().save_model

        def work():
            with pretrained.same_config(wrapped.module):
                save(output_dir, _internal_call)

        summon.on_rank_0(wrapped, "save_model()", work)
        return None

    def _save_optimizer_and_scheduler(self, output_dir):
        state = self.optimizer.state_dict()  # of all ranks, complete on rank 0
        if self.args.should_save:
            torch.save(state, os.path.join(output_dir, OPTIMIZER_NAME))
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_best_model(self):
        wrapped = self._rannc_module()
        if wrapped is None:
            return super()._load_best_model()
        with wrapped.summon(writeback=True):
            return super()._load_best_model()


class _CalledOnAllRanks:
    """A model, for all but calls of it: they are those of its RaNNCModule."""

    __slots__ = ("_wrapped",)

    def __init__(self, wrapped):
        object.__setattr__(self, "_wrapped", wrapped)

    @property
    def __class__(self):
        return type(self._wrapped.module)

    def __getattr__(self, name):
        return getattr(self._wrapped.module, name)

    def __setattr__(self, name, value):
        setattr(self._wrapped.module, name, value)

    def __call__(self, *args, **kwargs):
        return self._wrapped(*args, **kwargs)


class _LossOfTheModel(transformers.Trainer):
    """transformers' own methods, of which those of other classes may make use."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss that a RaNNCModule returns is that of all ranks already, over all their tokens,
        where DistributedDataParallel would average the ranks' own. What is computed here from the
        outputs is of this rank's rows, as there."""
        own = (self.label_smoother or self.compute_loss_func) and "labels" in inputs
        with _unwrapping(self.accelerator):
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        multiplied = (
            self.args.average_tokens_across_devices
            and (self.model_accepts_loss_kwargs or self.compute_loss_func)
            and num_items_in_batch is not None
        )
        if own or not multiplied or self._rannc_module() is None:
            return found
        loss = (found[0] if return_outputs else found) / self.accelerator.num_processes
        return (loss, found[1]) if return_outputs else loss


@contextlib.contextmanager
def _unwrapping(accelerator):
    """Inside, unwrap_model() gives the model itself, whose class says whether labels are shifted.
    Elsewhere it gives the wrapped one, which can generate and be saved."""
    unwrap = accelerator.unwrap_model

    def unwrap_model(model, *args, **kwargs):
        found = unwrap(model, *args, **kwargs)
        return found.module if isinstance(found, RaNNCModule) else found

    vars(accelerator)["unwrap_model"] = unwrap_model
    try:
        yield
    finally:
        del vars(accelerator)["unwrap_model"]


def with_rannc(kind):
    """A class like ``kind``, some Trainer, that trains its model through RaNNC.

    A ``compute_loss()`` of ``kind`` may take the loss that the model returns, or compute one from
    its other outputs, for which ``rannc_config`` needs ``schedule="gpipe"``.
    """
    bases = (kind, _LossOfTheModel) if kind is not transformers.Trainer else (_LossOfTheModel,)
    return type(kind.__name__, (_WithRaNNC, *bases), {"__doc__": kind.__doc__})


Trainer = with_rannc(transformers.Trainer)
Seq2SeqTrainer = with_rannc(transformers.Seq2SeqTrainer)
