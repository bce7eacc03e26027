"""Accelerate: ``from pyrannc.integrations.accelerate import Accelerator``.

The rest of the script stays. ``prepare()`` wraps the model in a RaNNCModule with the optimizers
that are prepared with it, instead of DistributedDataParallel.
"""

import contextlib
import copy
import functools
import types

import accelerate
import torch
from accelerate.utils import DistributedType, recursively_apply

from pyrannc import launch
from pyrannc.config import Config
from pyrannc.errors import ConfigError
from pyrannc.integrations import repeats
from pyrannc.module import RaNNCModule
from pyrannc.wrapper import replaced_for_good

_OWN_KINDS = ("NO", "MULTI_CPU", "MULTI_GPU")  # of DistributedType: processes that only meet


class Accelerator(accelerate.Accelerator):
    """Accelerate's, on the ranks of RaNNC's job. Every rank makes it.

    Each rank gets its own rows of a prepared loader, ``backward``, ``accumulate`` and
    ``clip_grad_norm_`` are those of the whole batch, and ``gather_for_metrics`` is of all ranks.
    ``save_state``, ``load_state``, ``get_state_dict`` and ``save_model`` are called by every rank.

    Args:
        config: :class:`pyrannc.Config` of the models that are wrapped.
        settings: Other arguments of :class:`pyrannc.RaNNCModule` by name, such as ``pad``.

    Raises:
        ConfigError: It is set to FSDP, DeepSpeed, Megatron-LM, torch.compile or fp16.
    """

    def __init__(self, *args, config=None, settings=None, **kwargs):
        launch.init()
        super().__init__(*args, **kwargs)
        adopt(self, config, settings)

    def prepare(self, *args, **kwargs):
        self.rannc_optimizers = [each for each in args if isinstance(each, torch.optim.Optimizer)]
        self.rannc_models = [each for each in args if isinstance(each, torch.nn.Module)]
        return super().prepare(*args, **kwargs)

    def prepare_model(self, model, device_placement=None, evaluation_mode=False):
        """The model stays where it is, also with ``device_placement``: each rank's part goes to the
        device in the first call, and no device need hold the whole."""
        if not isinstance(model, RaNNCModule):
            others = [each for each in (*self.rannc_models, *self._models) if each is not model]
            optimizers = _stepping(model, others, self.rannc_optimizers)
            placed = self.device_placement if device_placement is None else device_placement
            config = _on(self.device, self.rannc_config) if placed else self.rannc_config
            model = RaNNCModule(model, optimizers or None, config, **self.rannc_settings)
            if self.mixed_precision == "bf16":
                vars(model)["forward"] = self._in_bfloat16(model)
        if not any(model is each for each in self._models):
            self._models.append(model)
        return model

    def prepare_data_loader(self, data_loader, *args, **kwargs):
        rows, batch = _size(data_loader), data_loader.batch_size
        if rows and batch and self.even_batches and not data_loader.drop_last:
            repeats.warn(rows, batch if self.split_batches else batch * self.num_processes)
        return super().prepare_data_loader(data_loader, *args, **kwargs)

    def _in_bfloat16(self, model):
        """``forward`` of a wrapped model as Accelerate calls one in mixed precision: what it
        returns is float32."""
        ours = model.forward.__func__

        @functools.wraps(ours)
        def forward(model, *args, **kwargs):
            with self.autocast():
                found = ours(model, *args, **kwargs)
            # Accelerate's own conversion asks all that has a dtype, also what was not sent.
            return recursively_apply(torch.Tensor.float, found, test_type=_is_half)

        # A method: deepcopy() gives a copy of the model that of the copy.
        return types.MethodType(forward, model)

    def wait_for_everyone(self):
        """A rank that does something with the model meanwhile that all ranks have to do, such as
        state_dict() on the main process alone, is told."""
        deployed = [
            model._deployment
            for model in self._models
            if isinstance(model, RaNNCModule) and model._deployment is not None
        ]
        if deployed:
            deployed[0].call_agreement.other("wait_for_everyone()", inside_summon=True)
        super().wait_for_everyone()

    def load_state(self, *args, **kwargs):
        """Every rank has the whole model while it is loaded."""
        wrapped = self._models
        with contextlib.ExitStack() as whole:
            for model in wrapped:
                whole.enter_context(model.summon(writeback=True))
            self._models = [model.module for model in wrapped]
            try:
                return super().load_state(*args, **kwargs)
            finally:
                self._models = wrapped


def _on(device, config):
    """``config`` with ``device``, which inputs on the host would not say."""
    if device.type == "cpu" or (config is not None and config.device):
        return config
    config = Config() if config is None else copy.copy(config)
    config.device = str(device)
    return config


def _stepping(model, others, optimizers) -> list:
    """Those that hold a parameter of ``model``, and none of ``others`` that are prepared, too: one
    over several models is given to none of them, and found at its first step."""
    own = set(map(id, model.parameters()))
    elsewhere = {id(each) for other in others for each in other.parameters()} - own
    found = []
    for each in optimizers:
        held = {id(parameter) for group in each.param_groups for parameter in group["params"]}
        if held & own and not held & elsewhere:
            found.append(getattr(each, "optimizer", each))
    return found


def _size(loader):
    """The number of its rows, where that is known."""
    return len(loader.dataset) if hasattr(loader.dataset, "__len__") else None


def _is_half(value) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


replaced_for_good.install(replaced_for_good.INTEGRATION)


def adopt(accelerator, config=None, settings=None) -> None:
    """Makes an Accelerator that somebody else has made one of ours."""
    kind = accelerator.distributed_type
    what = ""
    if kind not in [DistributedType[name] for name in _OWN_KINDS]:
        what = kind.name
    elif accelerator.state.dynamo_plugin.backend.name != "NO":
        what = "torch.compile"
    elif accelerator.mixed_precision not in ("no", "bf16"):
        what = f"mixed precision ({accelerator.mixed_precision})"
    if what:
        raise ConfigError(
            f"Accelerate is set to {what}, which does not work with RaNNC's Accelerator.\n  RaNNC "
            "cuts and runs the model itself: leave it out of the configuration. Mixed precision "
            "may be bf16."
        )
    known, ranks = accelerator.num_processes, launch.get_world_size()
    if known != ranks:
        raise ConfigError(
            f"Accelerate knows of {known} processes, and the job has {ranks} ranks, which would "
            "train on the same rows.\n  Import pyrannc.integrations before TrainingArguments(), "
            "PartialState() or another Accelerator() is made. Without a device that Accelerate "
            "knows, ask for the CPU: Accelerator(cpu=True), TrainingArguments(use_cpu=True)."
        )
    accelerator.__class__ = Accelerator
    accelerator.rannc_config, accelerator.rannc_settings = config, settings or {}
    accelerator.rannc_optimizers, accelerator.rannc_models = [], []
