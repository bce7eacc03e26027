"""What the first call of a RaNNCModule needs before there can be a plan: ranks, and a graph."""

import torch

from pyrannc import _C, launch
from pyrannc.capture.arguments import row_positions
from pyrannc.capture.arguments.batch_dims import find_batch_dims, input_names, said_batch_dims
from pyrannc.capture.model import capture
from pyrannc.capture.rows.whole_batch import WholeBatch
from pyrannc.errors import RaNNCError
from pyrannc.hooks.module_hooks import ModuleHooks
from pyrannc.job import devices, launchers, process, same_rows
from pyrannc.job.agreement import hosts_of, sizes_of_all
from pyrannc.materialize import values
from pyrannc.optimizer.step import fused
from pyrannc.running.task import Task
from pyrannc.wrapper.front_ends import FrontEnds


def task_of(model, given, call, known, wanted):
    """The captured :class:`~pyrannc.running.task.Task` of ``call``, and the call as it is padded to
    the longest of all ranks. Collective.

    Args:
        given: :class:`~pyrannc.wrapper.given.Given`.
        known: Which dimension of an input holds the rows, by its path, where that is known.
        wanted: Where values come from: :class:`~pyrannc.materialize.values.Wanted`.
    """
    config = given.config
    world = _joined(config)
    source = values.of(model, wanted, world)
    places = devices.choose(model, call, given.optimizers, config, world)
    call, rows = _padded(model, given, call, world, known)
    hooks = ModuleHooks(model)
    hooks.agree(world, call, config.sync_params_on_init)

    names = input_names(model, call)

    def captured_by(front_end, may_be_alone):
        with torch.enable_grad():  # grad mode of the call is not that of the model
            captured = capture(
                model,
                *call.arguments(),
                given.batch_dims,
                known=known,
                exact_loss=config.exact_loss,
                explicit_draws=config.draws_by_key,
                sync_batch_norm=config.sync_batch_norm,
                hooks=hooks,
                places=places,
                front_end=front_end,
                batch=WholeBatch(rows, may_be_alone),
            )
        hooks.refuse_unsent(captured, world.size)
        if world.size > 1:
            said = said_batch_dims(call, names, given.batch_dims, {})
            row_positions.refuse(captured, call, names, said)
        values.refuse_constants(model, captured.objects)
        return captured

    front_ends = FrontEnds(config.frontend, world, captured_by)
    captured = front_ends.first()
    if world.size > 1:
        said = said_batch_dims(call, names, given.batch_dims, {})
        same_rows.refuse_same_argument(call, names, captured.batch_dims, said, world)
    for optimizer in given.optimizers if config.fused_optimizer else ():
        fused.prefer(optimizer)
    from_file = config.deployment_file if config.load_deployment else None
    task = Task(
        model=model,
        captured=captured,
        front_ends=front_ends,
        optimizers=given.optimizers,
        config=config,
        outputs=_C.plan.Outputs.all if hooks.observed else given.outputs,
        outside_loss=given.outside_loss,
        padding=given.padding,
        hooks=hooks,
        elementwise_optimizer=given.elementwise_optimizer,
        zero=given.zero,
        master_weights=given.master_weights,
        counts_state=not given.optimizers and model.training and torch.is_grad_enabled(),
        plan_file=given.load_deployment or from_file,
        world=world,
        device=places.device,
        home=places.home,
        value_source=source,
    )
    return task, call


def _joined(config):
    """The communicator of the job, and what a rank does to its process from here on."""
    world = launch.world(config.comm_timeout_s)
    world.timeout_s = config.comm_timeout_s
    launchers.check_group(world)
    process.end_job_on_error(world, config.end_job_on_error and world.size > 1)
    process.share_cores(world, hosts_of(world))
    return world


def _padded(model, given, call, world, known):
    """The call, before anything is known of it on other ranks, and the rows of all of them. None
    where some rank cannot tell them, whose capture says why. Collective."""
    padding, fault, sizes, rows = given.padding, "", {}, None
    try:
        if padding:
            fault = padding.unknown(model, call)
        dims = find_batch_dims(call, input_names(model, call), given.batch_dims, known)
        rows = call.rows(dims)
        if padding:
            sizes = padding.sizes(call, dims)
    except RaNNCError as error:
        fault = str(error) if padding else ""  # raised on every rank
    ranks, all_rows = sizes_of_all(padding.said(), sizes, rows, fault, world)
    return padding.apply(model, call, ranks), None if None in all_rows else sum(all_rows)
