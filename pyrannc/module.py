"""RaNNCModule: the one line that a user adds."""

import contextlib
import inspect
import textwrap
import weakref
from dataclasses import replace

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from pyrannc import deploy, launch, live_deployments, log
from pyrannc.capture.arguments import rank_0
from pyrannc.capture.arguments.call import Call
from pyrannc.capture.arguments.refusals import refuse_transforms
from pyrannc.errors import RaNNCError
from pyrannc.generation import generate
from pyrannc.hooks import backward_hooks
from pyrannc.materialize import values
from pyrannc.optimizer import gradient_norm
from pyrannc.optimizer.step import early, participants
from pyrannc.original import methods, switches
from pyrannc.planning import plan_file
from pyrannc.running import copies
from pyrannc.running.call_kinds import CallKinds
from pyrannc.running.data_parallel_wrappers import refuse_around, refuse_ddp, refuse_wrappers
from pyrannc.state import pretrained, summon
from pyrannc.wrapper import (
    compiled,
    first_call,
    given,
    items,
    own_names,
    replaced_for_good,
    saved_tensors,
)
from pyrannc.wrapper.model_interface import ModelInterface
from pyrannc.wrapper.signature import ForwardOfModel


class RaNNCModule(ModelInterface):
    """Trains ``model`` across all ranks of the job, split into pipeline stages and replicas.

    The first call decides everything: it captures the model with that call's arguments, measures
    it, and agrees on one plan with every rank. Later calls take only the training step. From then
    on this rank holds the parameters of its own stages; the others are released: what they are can
    be read, and any other use is an error.

    Args:
        model: Module to train, on the CPU or on one accelerator. On the CPU it may be larger than a
            device: each rank moves its own part to that of its inputs or of ``Config(device=...)``.
        optimizer: Optimizer over ``model.parameters()``, or a list of some that share none of them;
            cut down in place to this rank's part.
        config: Limits and choices of the planner. Default: ``Config.from_env()``.
        load_deployment: Path of a plan to use instead of measuring and planning.
        gather_inputs: With False the batch is that of rank 0 alone, whatever the other ranks pass,
            and every rank gets its outputs. Gradients are those of rank 0's loss.
        outside_loss: What you make of outputs that hold rows: "mean" when the loss of all ranks is
            the mean over all their rows, "sum" when it is the sum of the ranks' losses.
        batch_dims: For positional arguments whose batch is not dimension 0, the dimension by
            position or keyword, such as ``{0: 1}`` for a sequence-first input.
        outputs: Of a model that returns its loss, in training: ``"loss"`` sends only the loss (and
            numbers that need no gradient), and using another output is an error; ``"all"`` sends
            the others too, each rank its own rows, without a gradient. Under the schedule gpipe,
            after ``eval()`` and under ``no_grad()`` all outputs are sent.
        elementwise_optimizer: True says that a step of ``optimizer`` treats each parameter by
            itself. Of classes that are not torch's this is tried out on small copies.
        pad: Where ranks may have arguments of different lengths in one call: numbers by argument,
            such as ``{"input_ids": 0, "labels": -100}``, with which each is padded to that of the
            longest rank, in all dimensions but the rows'. Nested ones by path: ``batch['ids']``.
        pad_side: "right", or "left" of what is there.
        pad_to: A number such as 64, of which padded lengths (the first dimension beside the rows')
            become multiples, or "powers of two": each length that is new is captured, so that many
            are slow.
        weights: Path of a file of safetensors, of a folder in Hugging Face's layout, or of one of
            :func:`pyrannc.save`; or :class:`pyrannc.Weights`. Each rank reads its part of it in the
            first call. The model may be built on the meta device, without memory; without
            ``weights`` its modules then initialise what each rank holds.
        zero: True lets the replicas of a stage share the state of ``optimizer``: each keeps that of
            an equal part of their parameters, and steps it (ZeRO, stage 1). For optimizers that
            treat each number of a parameter by itself, as Adam does; "auto": where they do and the
            planner finds it fits or is faster. ``.grad`` is then the sum for the numbers that this
            rank steps, and zero elsewhere. "parameters" lets them share parameters and gradients,
            too (ZeRO, stage 3): each keeps a part of every parameter, along its first dimension,
            and those of a bucket come together while they are computed with. A parameter and its
            ``.grad`` then say what the whole is; ``pyrannc.full(p)`` gives its values.
        master_weights: True lets ``optimizer`` step a float32 copy of each parameter of 16 bits,
            which stands among its state as "master"; the parameter is that copy, rounded.

    Attributes:
        module: The model. Other attributes are the model's; where it has none called ``config``,
            ``model`` or ``plan``, those of ``rannc`` answer.
        rannc: ``config``, ``model`` and ``plan`` of RaNNC, in any case.

    Shapes:
        Batched inputs are ``[B, ...]``; the global batch is the concatenation of all ranks' batches
        in rank order. Outputs and gradients equal one process on it; each rank gets its own rows
        back, and a scalar loss is that of the global batch.

    Raises:
        TraceError: ``forward`` branches on tensor values; names the source line.
        InfeasibleError: No plan fits in ``config.mem_limit_gb`` (GiB); names the largest block.
        ConfigError: A setting, a forced plan, or an optimizer over other parameters, or one that
            computes something of all parameters together.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = RaNNCModule(model, optimizer)
    >>> loss = model(torch.ones(8, 4)).mean()
    >>> loss.backward()
    >>> optimizer.step()
    """

    def __new__(cls, model=None, *_, **__):
        has_items = cls is RaNNCModule and items.are_in(model)
        return super().__new__(_WithItems if has_items else cls)

    def __init__(
        self,
        model,
        optimizer=None,
        config=None,
        *,
        load_deployment=None,
        batch_dims=None,
        outputs="loss",
        outside_loss="mean",
        elementwise_optimizer=False,
        pad=None,
        pad_side="right",
        pad_to=None,
        gather_inputs=True,
        weights=None,
        zero=False,
        master_weights=False,
        **of_original,
    ):
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"RaNNCModule wraps a torch.nn.Module, not {type(model).__name__}")
        compiled.leave_alone(RaNNCModule)
        model = compiled.made_of(model)
        _refuse_wrapped(model, "")
        refuse_wrappers(model)
        replaced_for_good.install(replaced_for_good.WRAPPED)
        participants.install()
        self._given = given.read(
            RaNNCModule,
            of_original,
            optimizer=optimizer,
            config=config,
            load_deployment=load_deployment,
            batch_dims=batch_dims,
            outputs=outputs,
            outside_loss=outside_loss,
            elementwise_optimizer=elementwise_optimizer,
            pad=pad,
            pad_side=pad_side,
            pad_to=pad_to,
            gather_inputs=gather_inputs,
            zero=zero,
            master_weights=master_weights,
        )
        end_plans_of(model)
        self._given.attach(model)
        # Not a registered child: every name stays that of the user's model, without a prefix.
        object.__setattr__(self, "module", model)
        self._first_values = values.Wanted(weights)
        self._ended = ""  # why there will be no other plan
        self._deployment = None
        self._runs = None  # see CallKinds; from the first call on
        self._no_sync = False
        self._in_forward = False
        self.training = model.training
        self._kin = copies.Kin(self)
        own = weakref.ref(self)
        if launch.get_world_size() > 1:
            optimizers = self._given.optimizers
            early.refuse(lambda: own() is None or own()._is_or_was_deployed(), optimizers)
        self._is_made = True  # from here on other attributes are the model's

    # -- running ------------------------------------------------------------------------------

    @ForwardOfModel
    def forward(self, *args, **kwargs):
        if not torch.is_inference_mode_enabled():
            return self._call(args, kwargs)
        # What a call makes serves later calls that train, and autograd takes no inference tensors.
        with torch.inference_mode(False), torch.no_grad():
            return self._call(args, kwargs)

    @summon.forward_pass
    @saved_tensors.without_hooks
    def _call(self, args, kwargs):
        refuse_transforms()
        known = self._runs.known_dims() if self._runs else None
        if not self._given.gather_inputs:
            world = launch.world(self._given.config.comm_timeout_s)
            args, kwargs, known = rank_0.arguments(
                world, self.module, args, kwargs, self._given.batch_dims, known
            )
        call = Call(args, kwargs)
        if self._deployment is None:
            call = self._deploy(call, known)
        delayed = switches.is_on("delay_grad_allreduce") and not self._no_sync
        run, turn, call = self._runs.enter(call, self._no_sync or delayed)
        captured = run.capture
        inputs = backward_hooks.inputs(self.module, captured, call)
        outputs = run.step(inputs, replace(turn, delayed=delayed))
        if self._given.gather_inputs:
            rows = call.rows(captured.batch_dims)
        else:
            rows = turn.local_rows[0]
            outputs = rank_0.to_all(self._deployment.world, captured, outputs)
        result = captured.unflatten(outputs, rows)
        if captured.hooks is None:
            return result
        result, seen = result
        self._deployment.task.hooks.call(seen)
        return result

    def _deploy(self, call, known):
        """The first call; returns it as it is padded to the longest of all ranks.

        ``known``: which dimension of an input holds the rows, by its path, where that is known.
        """
        if self._ended:
            raise RaNNCError(f"the model cannot be called after {self._ended}: build another one")
        refuse_wrappers(self.module)
        parameters = [*self.module.parameters()]
        if any(each.has_released(parameters) for each in live_deployments.of_tensors(parameters)):
            raise RaNNCError(
                "another RaNNCModule was made of this model, or of a part of it, and is at work."
                "\n  Call that one, or its undeploy() before this one."
            )
        task, call = first_call.task_of(self.module, self._given, call, known, self._first_values)
        self._put_to_work(deploy.deploy(task, call.arguments()), call)
        self._first_values = values.Wanted()  # a later plan keeps what was trained
        replaced_for_good.install(replaced_for_good.FIRST_CALL)
        self._kin.follow(self, task.world)
        return call

    def read_in_first_call(self, weights, then) -> None:
        """The first call reads ``weights``, as if the constructor had been given them, and calls
        ``then()`` once this rank holds its part; for :func:`pyrannc.load`."""
        self._first_values = values.Wanted(weights, then)

    def note_loaded(self, names) -> None:
        """These tensors have been loaded: the first call does not read them from ``weights``."""
        self._first_values.loaded.update(names)

    def _values_beside(self, leaders, world):
        """Where its model gets values from, as a copy that follows another wrapper; ``leaders``: of
        that one's. Collective."""
        wanted, self._first_values = self._first_values, values.Wanted()
        return values.of_copy(self.module, wanted, leaders, world)

    def _put_to_work(self, deployment, call) -> None:
        """From here on calls run on ``deployment``; ``call``: the first one, or None."""
        self._deployment = deployment
        self._runs = CallKinds(deployment, call, self._given.batch_dims)
        if self._given.config.profiling:
            made = weakref.ref(deployment)
            weakref.finalize(self, lambda: made() and made().tell_time())
        own = weakref.ref(self)
        deployment.when_it_ends(lambda reason: own() and own()._forget(reason))

    def _is_or_was_deployed(self):
        return self._deployment is not None or bool(self._ended)

    def _forget(self, reason):
        if self._runs:
            self._runs.end()
        self._deployment = self._runs = None
        self._ended = reason

    def audit(self) -> int:
        """Captures calls of the current mode once more, and compares with what runs.

        Finds what Python has changed since, such as globals of a library or the environment, and
        takes as long as a capture for each kind of call. Every rank calls it. Later calls are
        audited by themselves, too: the second one of each kind, and others where audits have taken
        less than 1 % of the time (``Config(audit="off")``: none).

        Returns:
            The number of kinds that were audited.

        Raises:
            RaNNCError: The model no longer computes what was captured; names the first node that
                differs, its module and source line, and since which call results are in doubt.
        """
        self._deployed("audit").call_agreement.other("audit()")
        return self._runs.audit()

    def metrics(self) -> dict:
        """What the last training steps took on all ranks, beside what the plan predicts.

        A record as the setting ``metrics_file`` has it in a line of JSON: ``step_ns``,
        ``predicted_step_ns``, ``rows_per_s``, ``flops_per_s``, ``stages`` with ``peak_bytes``,
        ``ranks`` with shares of their time. The ranks exchange it after the tenth step, and every
        ``metrics_every`` steps where a sink is set; before, it has ``steps`` only. Any rank may
        ask, at any time.
        """
        return self._deployed("metrics").steps.metrics()

    @property
    def rannc(self):
        """RaNNC's ``config``, ``model`` and ``plan``, also where the model has such attributes."""
        return own_names.OwnNames(self)

    def save_deployment(self, path) -> None:
        """Writes the plan to ``path`` (rank 0 only); ``load_deployment=path`` reuses it."""
        plan_file.save_plan(self._deployed("save_deployment"), path)

    def _deployed(self, what):
        if self._deployment is None:
            raise RaNNCError(f"{what} needs a plan, and the plan is made by the first call")
        return self._deployment

    @contextlib.contextmanager
    def no_sync(self):
        """Forward passes in the block leave the sum of gradients over the replicas for later.

        As in DistributedDataParallel, for accumulation: the block is around the forwards and
        backwards of all micro-steps but the last. Their backwards do not change ``.grad``; what
        this rank has summed up is kept, and the backward of the next forward outside the block adds
        it to its own gradients before these are summed over the replicas, once. A pipeline's
        activations and their gradients are sent all the same.

        Every rank does the same. ``optimizer.step()`` before that sum is an error; the module's
        ``zero_grad()`` drops what is kept.

        >>> model = RaNNCModule(torch.nn.Linear(4, 2))
        >>> with model.no_sync():
        ...     model(torch.ones(8, 4)).mean().backward()
        >>> model(torch.ones(8, 4)).mean().backward()
        """
        before = self._no_sync
        self._no_sync = True
        try:
            yield
        finally:
            self._no_sync = before

    def summon(self, writeback=False, rank0_only=False):
        """A block in which the model's parameters and buffers are whole; every rank enters it.

        Inside, ``model.parameters()`` and the modules of the unwrapped model have their values on
        every rank (with ``rank0_only`` on rank 0: the others need no memory for them), so it can be
        looked at, saved, or called by itself. Afterwards every rank has its own part again, and
        what was changed inside is undone. With ``writeback`` what rank 0 has at the end counts,
        on every rank. Before the first call nothing has been cut, and the block does nothing.

        Raises:
            RaNNCError: Inside a forward pass; where not all ranks enter it; and, inside, for calls
                of this module, steps of its optimizer and ``load_state_dict()``.

        >>> model = RaNNCModule(torch.nn.Linear(4, 2))
        >>> loss = model(torch.ones(8, 4)).mean()
        >>> with model.summon():
        ...     model.weight.shape
        torch.Size([2, 4])
        """
        return summon.of_module(self, writeback, rank0_only)

    def delay_grad_allreduce(self, delay: bool) -> None:
        """As ``no_sync()``, from the next forward pass on, until it is called with False."""
        self._no_sync = bool(delay)

    def allreduce_grads(self) -> None:
        """Sums the gradients kept under ``no_sync()`` over the replicas now, into ``.grad``.

        Every rank calls it.
        """
        deployment = self._deployed("allreduce_grads")
        deployment.call_agreement.other("allreduce_grads()")
        deployment.unsummed.add_to_gradients()

    def zero_grad(self, set_to_none=True):
        """Also drops what is kept under ``no_sync()``."""
        super().zero_grad(set_to_none)
        if self._deployment is not None:
            self._deployment.unsummed.kept.drop()
            if set_to_none:
                gradients = self._deployment.owners.gradients
                gradients.cleared = gradients.arrivals

    def clip_grad_norm(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> float:
        """Scales the gradients so that their norm over the whole model is at most ``max_norm``.

        Every rank calls it. Returns the norm before. ``torch.nn.utils.clip_grad_norm_`` does the
        same where it is called with parameters of a wrapped model.
        """
        return self.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite).item()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """As :meth:`clip_grad_norm`, with the norm as a tensor, as FSDP's method of this name."""
        self._deployed("clip_grad_norm_")
        parameters = self.module.parameters()
        return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)

    def calc_grad_norm(self) -> float:
        """The L2 norm of the gradients over the whole model. Every rank calls it."""
        return gradient_norm.of_model(self._deployed("calc_grad_norm"))

    def get_param(self, name: str, amp_master_param: bool = False) -> torch.Tensor:
        """A copy of the parameter ``name``, on the CPU of every rank. Every rank calls it.

        ``amp_master_param``: of RaNNC 0.7; parameters have no other copies.
        """
        return summon.parameter(self.module, self._agreed(f"get_param('{name}')"), name)

    def get_param_grad(self, name: str, amp_master_param: bool = False) -> torch.Tensor | None:
        """As :meth:`get_param`, its gradient; None where it has none."""
        return summon.gradient(self.module, self._agreed(f"get_param_grad('{name}')"), name)

    def _agreed(self, what):
        if self._deployment is not None:
            self._deployment.call_agreement.other(what)
        return self._deployment

    def enable_dropout(self, enable: bool) -> None:
        """With False, calls from here on compute without dropout, in training mode, too.

        Every rank calls it, after the first call of the model. ``eval()`` does the same and more.
        """
        if self._deployment is None:
            log.warn("module", "enable_dropout() does nothing before the first call of the model")
        else:
            self._deployment.dropout = bool(enable)

    def is_checkpointing_enabled(self) -> bool:
        """Whether some stage of the plan runs its forward again in its backward (recompute)."""
        plan = self._deployed("is_checkpointing_enabled").plan
        return any(stage.recompute for stage in plan.stages)

    def undeploy(self) -> None:
        """Ends the plan; every rank has the whole model and state of the optimizer again.

        Every rank calls it. Gradients are dropped. The next call plans anew; before the first one
        there is nothing to do.
        """
        if self._deployment is not None:
            self._deployment.undeploy()

    # -- as other objects ----------------------------------------------------------------------

    def __repr__(self):
        """As nn.Module shows a module with one child."""
        return f"{self._get_name()}(\n{textwrap.indent(f'(module): {self.module!r}', '  ')}\n)"

    def __deepcopy__(self, memo):
        return self._kin.copied(self, memo)

    def __getstate__(self):
        if self._deployment is not None:
            raise RaNNCError(
                "a RaNNCModule cannot be copied or pickled after its first call: its plan is at "
                "work on all ranks, and this rank holds a part of the model.\n"
                "  Save state_dict(), and load it into another model; or copy it before its first "
                "call."
            )
        return self.__dict__

    @property
    def _ddp_params_and_buffers_to_ignore(self):
        """Read by the constructor of DistributedDataParallel."""
        refuse_ddp(inspect.currentframe().f_back)

    def __setattr__(self, name, value):
        """What is read through the wrapper is also written through it."""
        if name == "__class__":  # as fully_shard() does
            refuse_around(value.__name__)
        is_made = self.__dict__.get("_is_made")
        if not is_made or not own_names.write(self, name, value):
            super().__setattr__(name, value)
        if is_made and name == "training":  # by hand, which is of no other module of the model
            self.module.training = value

    def __delattr__(self, name):
        if own_names.is_own(self, name) or not hasattr(self.module, name):
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("module", "_deployment"):  # not there yet: __init__ has raised
                raise
            try:
                found = own_names.read(self, name)
            except AttributeError:
                if hasattr(type(self.module), name):  # a property of the user's has raised it
                    raise
                return methods.missing(self, name)
            found = pretrained.for_all_ranks(self, name, found)
            return generate.for_all_ranks(self, name, found)


def end_plans_of(model) -> None:
    """Every rank has the whole of ``model`` again, where it was wrapped before, or a part of it.

    Collective where it was.
    """
    for deployment in live_deployments.of_tensors(model.parameters()):
        if deployment.world.rank == 0:
            log.warn(
                "module",
                "the model was wrapped before: the plan of that wrapper ends, and each rank has "
                "the whole model until the next first call",
            )
        deployment.undeploy()


class _WithItems(items.Items, RaNNCModule):
    """As RaNNCModule, for a model that can be indexed."""


def _refuse_wrapped(module, path):
    """Not by named_modules(): those of a RaNNCModule are its model's."""
    if isinstance(module, RaNNCModule):
        what = f"'{path}' of the model" if path else "the model"
        raise RaNNCError(f"{what} is a RaNNCModule already.\n  Wrap either the whole or that part.")
    for name, child in module.named_children():
        _refuse_wrapped(child, f"{path}.{name}" if path else name)
