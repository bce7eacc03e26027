"""Lightning: ``Trainer(strategy=RaNNCStrategy())``, from ``pyrannc.integrations.lightning``.

The rest of the script stays. The strategy wraps what the LightningModule trains in a RaNNCModule:
its one child with parameters, or else its ``forward()``, which ``training_step()`` calls as
``self(...)``; or the children that are named, such as a generator and its discriminator.
"""

import contextlib
import copy
import os

import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch.utils.data import SequentialSampler
from torchmetrics import Metric

from pyrannc import launch
from pyrannc.errors import ConfigError, RaNNCError
from pyrannc.integrations import repeats
from pyrannc.module import RaNNCModule
from pyrannc.ranks import gathered
from pyrannc.state.released import RELEASED

# Private names of Lightning: without them, loaders are shuffled that do not shuffle, and
# sync_batchnorm is not refused.
_CONNECTOR, _PREPARE, _LAYER_SYNC = "_data_connector", "_prepare_dataloader", "_layer_sync"
_DEVICE = "_device"  # of a LightningModule; without it self.device is the host in training_step()
_TRAINER = "_trainer"  # of a LightningModule; without it a copy of one copies its Trainer, too
# What the Trainer counts, and a LightningModule has as properties.
_COUNTS = ("current_epoch", "global_step")
_NODE = "PipelineStep"  # of autograd: a call of a RaNNCModule


class RaNNCStrategy(DDPStrategy):
    """Trains a LightningModule on the ranks of RaNNC's job; every rank makes a Trainer with it.

    Each rank gets its own rows of a loader, and what is logged is the mean over the ranks. Clipping
    and accumulation are those of the whole batch. Rank 0 writes checkpoints, which have the names
    of the model without RaNNC and can be resumed on any number of ranks, also without it. After
    ``fit()`` the model stays on the ranks that have trained it; ``test()`` and ``predict()`` of the
    same Trainer go through the pipeline.

    Args:
        config: :class:`pyrannc.Config`.
        modules: Names of the children that are wrapped, each by itself. What stands beside them,
            such as a frozen teacher, stays on every rank.
        settings: Other arguments of :class:`pyrannc.RaNNCModule`, such as ``pad``.

    Raises:
        ConfigError: The Trainer asks for ``sync_batchnorm``, or the LightningModule has several
            children with parameters, or parameters of its own, and no ``forward()``, or no child
            of a name in ``modules``.
        RaNNCError: ``training_step()`` uses parameters without calling what was wrapped.
    """

    strategy_name = "rannc"

    def __init__(self, config=None, *, modules=(), **settings):
        launch.init()
        super().__init__(cluster_environment=_Ranks())
        self._config, self._settings = config, settings
        self._modules = [modules] if isinstance(modules, str) else list(modules)
        self._wrapped = {}  # RaNNCModules by the name of the child that each wraps; None: forward()

    # -- where this rank is ---------------------------------------------------------------------

    @property
    def root_device(self):
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[self.local_rank % len(devices)]

    @property
    def num_processes(self):
        return self.world_size

    @property
    def distributed_sampler_kwargs(self):
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def _configure_launcher(self):
        """The ranks are there."""
        self._launcher = None

    def setup_distributed(self):
        """The ranks have met already."""
        reset_seed()
        self.set_world_ranks()

    # -- the model ------------------------------------------------------------------------------

    def setup(self, trainer):
        if getattr(self, _LAYER_SYNC) is not None:
            raise ConfigError(
                "Trainer(sync_batchnorm=True) does not work with RaNNCStrategy.\n  Use "
                "RaNNCStrategy(config=pyrannc.Config(sync_batch_norm=True))."
            )
        _keep_order(getattr(trainer, _CONNECTOR))
        module = self.lightning_module
        vars(module)["log"] = _logging_of_all_ranks(module)
        for callback in trainer.callbacks:  # have got the module's own
            callback.log = module.log
        for each in module.modules():
            if isinstance(each, Metric):
                each.dist_sync_on_step = True
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(self.model)
        fits = trainer.state.fn == TrainerFn.FITTING
        if fits:
            _unwrap(module)
            self._wrapped = {}
            names = self._modules or [_child_to_wrap(module)]
            self._others_to_device(names)
            self.setup_optimizers(trainer)
            self._wrap(names, trainer.callbacks)
        elif not _wrapped_in(module):
            self.model_to_device()
        self.setup_precision_plugin()

    def _others_to_device(self, names):
        """What is wrapped stays where it is until each rank takes its part: no device need hold the
        whole, and what has no values cannot be moved."""
        module, device = self.lightning_module, self.root_device
        stay = {id(each) for name in names for each in _child(module, name or "").modules()}
        for each in module.modules():
            if isinstance(each, Metric):
                each.to(device)
            elif id(each) not in stay:
                each._apply(lambda tensor: tensor.to(device), recurse=False)
            if isinstance(each, LightningModule):
                setattr(each, _DEVICE, device)

    def teardown(self):
        """Each rank keeps its part of the model."""
        if not _wrapped_in(self.lightning_module):
            return super().teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()
        return self.cluster_environment.teardown()

    def _wrap(self, names, callbacks):
        module = self.lightning_module
        for method in ("toggle_optimizer", "untoggle_optimizer"):
            vars(module)[method] = self._of_all_parameters(getattr(type(module), method))
        for each in callbacks:
            if isinstance(each, BaseFinetuning):
                vars(each)["finetune_function"] = self._by_identity(each)
        averages = [each for callback in callbacks for each in _copies_in(callback, module)]
        for name in names:
            target = _child(module, name) if name else _with_own_forward(module)
            held = set(map(id, target.parameters()))
            optimizers = [each for each in self.optimizers if _parameters(each) & held]
            if any(_parameters(each) - held for each in optimizers) and len(self._modules) > 1:
                optimizers = []  # of several of them, which is cut down where these are called
            self._wrapped[name] = RaNNCModule(
                target, optimizers or None, self._config, **self._settings
            )
            for average in averages:
                _wrap_alike(average, name, self._wrapped[name])
            _put(module, name, self._wrapped[name])

    def _of_all_parameters(self, method):
        """``method`` of the LightningModule, to which each optimizer holds what it has on all
        ranks: it freezes parameters, and every rank knows of all which are."""

        module = self.lightning_module

        def call(*args, **kwargs):
            with self._whole_groups():
                return method(module, *args, **kwargs)

        return call

    @contextlib.contextmanager
    def _whole_groups(self):
        """Inside, the groups of the optimizers have what they had before the first call."""
        with contextlib.ExitStack() as whole:
            for wrapped in self._wrapped.values():
                if wrapped._deployment is not None:
                    whole.enter_context(wrapped._deployment.with_whole_groups())
            yield

    def _by_identity(self, callback):
        """``finetune_function()`` of a callback that unfreezes layers, such as BackboneFinetuning.
        Whether an optimizer has a parameter is asked by its values there, which no rank has of
        all; on every rank the same are new to it."""
        tune, known = type(callback).finetune_function.__get__(callback), set()

        def new(optimizer, parameters):
            with self._whole_groups():
                known.update(_parameters(optimizer))
            found = [each for each in parameters if id(each) not in known]
            known.update(map(id, found))
            return found

        def call(*args, **kwargs):
            theirs = vars(BaseFinetuning)["filter_on_optimizer"]
            BaseFinetuning.filter_on_optimizer = staticmethod(new)
            try:
                return tune(*args, **kwargs)
            finally:
                BaseFinetuning.filter_on_optimizer = theirs

        return call

    def pre_backward(self, closure_loss):
        if self._wrapped:
            _refuse_parameters_outside(closure_loss, self.lightning_module)

    def training_step(self, *args, **kwargs):
        try:
            return super().training_step(*args, **kwargs)
        except RaNNCError as error:
            if None not in self._wrapped or RELEASED not in str(error):
                raise
            raise RaNNCError(
                f"{error}\n  What training_step() calls beside forward() stays whole with "
                "RaNNCStrategy(modules=[...]), the names of the children that RaNNC shall run."
            ) from error

    def validation_step(self, *args, **kwargs):
        """Before the first training step, whose batch the plan is made for, each rank looks at its
        rows by itself if it has the whole model, with values, where they are."""
        module, device = self.lightning_module, self.root_device.type
        waiting = {
            name: wrapped
            for name, wrapped in self._wrapped.items()
            if wrapped._deployment is None
            and all(each.device.type == device for each in wrapped.module.parameters())
        }
        for name, wrapped in waiting.items():
            _put(module, name, wrapped.module if name else None)
        try:
            return super().validation_step(*args, **kwargs)
        finally:
            for name, wrapped in waiting.items():
                _put(module, name, wrapped)

    def on_predict_start(self):
        """Lightning repeats no rows here, so that a rank may have a batch more than another."""
        if all(each._deployment is None for each in _wrapped_in(self.lightning_module).values()):
            return
        batches = self.lightning_module.trainer.num_predict_batches
        everyones = gathered(launch.world(), batches)
        if any(each != everyones[0] for each in everyones):
            counts = ", ".join(map(str, everyones))
            raise RaNNCError(
                "predict() runs on all ranks together, which have other numbers of batches: by "
                f"rank {counts}.\n  Let the number of rows be a multiple of the ranks' batches, or "
                "predict with a model of load_from_checkpoint() in one process."
            )


class _Ranks(ClusterEnvironment):
    """The job, as pyrannc.init() has found it."""

    creates_processes_externally = True

    @property
    def main_address(self):
        return os.environ.get("MASTER_ADDR", "localhost")

    @property
    def main_port(self):
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    def detect():
        return launch.get_world_size() > 1

    def world_size(self):
        return launch.get_world_size()

    def set_world_size(self, size):
        """It is what it is."""

    def global_rank(self):
        return launch.get_rank()

    def set_global_rank(self, rank):
        """The same."""

    def local_rank(self):
        return int(os.environ.get("LOCAL_RANK", "0"))

    def node_rank(self):
        return int(os.environ.get("GROUP_RANK", "0"))


def _keep_order(connector):
    """Loaders that do not shuffle deal out their rows in order, in training, too: with several
    ranks Lightning shuffles all that it trains with."""
    theirs = getattr(type(connector), _PREPARE).__get__(connector)

    def prepare(loader, shuffle, mode):
        in_order = isinstance(getattr(loader, "sampler", None), SequentialSampler)
        if mode != RunningStage.PREDICTING and hasattr(getattr(loader, "dataset", None), "__len__"):
            repeats.warn(len(loader.dataset), launch.get_world_size())
        return theirs(loader, shuffle and not in_order, mode)

    setattr(connector, _PREPARE, prepare)


class _Forward:
    """In place of a LightningModule's ``forward()``."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __call__(self, *args, **kwargs):
        module = self.wrapped.module
        for name in _COUNTS:  # beside the properties, where guards of attributes see them
            vars(module)[name] = getattr(module, name)
        return self.wrapped(*args, **kwargs)


_OF_CLASS = ("forward", "state_dict", "load_state_dict")


class _OwnForward:
    """Has the methods of its class, whatever :func:`_put` has put in their places."""

    def __getattribute__(self, name):
        if name in _OF_CLASS:
            return getattr(type(self), name).__get__(self)
        return super().__getattribute__(name)


def _with_own_forward(module):
    """``module`` itself, with all that it has now and later, but for :func:`_put`."""
    kind = type(module)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made = object.__new__(type(kind.__name__, (_OwnForward, kind), names))
    made.__dict__ = vars(module)
    return made


def _wrapped_in(module, path="") -> dict:
    """The RaNNCModules that this or another Trainer has put into a LightningModule, by name."""
    found = {}
    for name, child in module.named_children():
        if isinstance(child, RaNNCModule):
            found[path + name] = child
        else:
            found |= _wrapped_in(child, f"{path}{name}.")
    if isinstance(whole := vars(module).get("forward"), _Forward):
        found[None] = whole.wrapped
    return found


def _unwrap(module) -> None:
    """For another ``fit()``: every rank has the whole module again."""
    for name, wrapped in _wrapped_in(module).items():
        wrapped.undeploy()
        _put(module, name, wrapped.module if name else None)


def _put(module, name, what) -> None:
    """Lets a LightningModule call ``what``; where that is None, a ``forward()`` of its own."""
    if name:
        outer, _, last = name.rpartition(".")
        setattr(module.get_submodule(outer), last, what)
    elif what is None:
        for name in (*_OF_CLASS, *_COUNTS):
            vars(module).pop(name, None)
    else:
        vars(module)["forward"] = _Forward(what)
        vars(module)["state_dict"] = what.state_dict
        vars(module)["load_state_dict"] = what.load_state_dict


def _copies_in(callback, module) -> list:
    """Those of the LightningModule that a callback has made, such as StochasticWeightAveraging."""
    held = [getattr(each, "module", each) for each in vars(callback).values()]
    return [each for each in held if type(each) is type(module) and each is not module]


def _wrap_alike(average, name, wrapped) -> None:
    """Lets a copy of the LightningModule hold the same parts as ``wrapped``, so that both can be
    paired parameter by parameter."""
    trainer = getattr(wrapped.module, _TRAINER, None)
    made = copy.deepcopy(wrapped, {id(trainer): trainer})
    made.module.load_state_dict((_child(average, name) if name else average).state_dict())
    if not name:  # its children are from here on those of what was wrapped
        for held in ("_modules", "_parameters", "_buffers"):
            vars(average)[held] = vars(made.module)[held]
    _put(average, name, made)


def _child(module, name):
    try:
        return module.get_submodule(name)
    except AttributeError:
        there = ", ".join(each for each, _ in module.named_children())
        raise ConfigError(
            f"RaNNCStrategy(modules=...) names '{name}', but {type(module).__name__} has {there}"
        ) from None


def _parameters(optimizer) -> set:
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


def _child_to_wrap(module):
    """The name of the only child with parameters; None where ``forward()`` is to be wrapped."""
    children = [name for name, child in module.named_children() if list(child.parameters())]
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if len(children) == 1 and not own:
        return children[0]
    kind = type(module)
    if kind.forward in (LightningModule.forward, torch.nn.Module.forward):
        raise ConfigError(
            f"{kind.__name__} has {len(children) + len(own)} children and parameters of its own "
            f"({', '.join([*children, *own][:5])}) and no forward(), so it is not known what "
            "RaNNC shall run.\n  Put them into one nn.Module, write forward() and call it as "
            "self(...) in training_step(), or name those that are called: "
            f"RaNNCStrategy(modules={children[:2]!r})."
        )
    return None


def _refuse_parameters_outside(loss, module):
    """Gradients of parameters that reach ``loss`` past the wrapped model would be of this rank's
    rows only."""
    names = {id(each): name for name, each in module.named_parameters()}
    pending, seen, called = [loss.grad_fn], set(), False
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == _NODE:
            called = True
            continue
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            raise RaNNCError(
                f"the loss of training_step() depends on '{names[id(variable)]}' past the call of "
                "what RaNNC runs: its gradient would be of this rank's rows only.\n  Let "
                "forward(), called as self(...), compute all that has parameters; or name the "
                "children that training_step() calls: RaNNCStrategy(modules=[...])."
            )
        pending.extend(following for following, _ in node.next_functions)
    if not called and loss.grad_fn is not None:
        raise RaNNCError(
            "the loss of training_step() depends on no call of the model.\n  Call self(...), or "
            "the module that has the parameters."
        )


def _logging_of_all_ranks(module):
    """``self.log()``, which takes the mean of all ranks where it would be that of rank 0's rows."""
    theirs = type(module).log.__get__(module)

    def log(*args, **kwargs):
        if not kwargs.get("rank_zero_only", False):
            kwargs["sync_dist"] = True
        return theirs(*args, **kwargs)

    return log
