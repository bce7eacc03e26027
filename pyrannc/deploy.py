"""The sequence of phases behind the first call, readable from top to bottom.

capture -> agree -> self-check -> profile -> plan on rank 0 -> broadcast -> try plans -> run.
"""

import functools
import json

import torch

from pyrannc import _C, log
from pyrannc.errors import PlanError
from pyrannc.job import freed_memory, threads
from pyrannc.job.agreement import on_rank, same_graph, same_settings
from pyrannc.optimizer.fused_step import FusedStep
from pyrannc.planning import candidates, plan_file, planner_inputs, schedules, step_prediction
from pyrannc.planning.plan_file import check_save, save_plan
from pyrannc.profiling import operators, step_costs
from pyrannc.report import training_steps
from pyrannc.running.deployment import Deployment
from pyrannc.selfcheck.findings import (
    mixing_reason,
    note_dense,
    self_check,
    warn_of_attributes,
    warn_of_averages,
)
from pyrannc.state import named_tensors
from pyrannc.trial.try_plans import try_plans


def deploy(model, optimizer, captured, call, config, world, load_path, outputs, outside_loss):
    """Everything that happens once: from a captured model to a :class:`Deployment`.

    Collective. What one rank finds wrong while it checks and plans is raised on every rank.
    """
    args, kwargs = call
    path = load_path or (config.deployment_file if config.load_deployment else None)
    others = {
        "load_deployment": path is not None,
        "optimizer": type(optimizer).__name__,
        "outputs": outputs.name,
        "outside_loss": outside_loss,
        "model.training": model.training,
    }
    same_settings(config, others, world)
    on_rank(0, world, lambda: check_save(config))
    local_rows = same_graph(captured, captured.batch_size(args, kwargs), world)
    parameters = named_tensors.tensors(model)
    if config.sync_params_on_init and world.size > 1:
        for tensor in {id(tensor): tensor for tensor in parameters.values()}.values():
            named_tensors.broadcast(world, tensor, 0, list(range(world.size)))
    hosts = [item.decode() for item in world.all_gather(world.host.encode())]
    threads.share_cores(world, hosts)
    memory = planner_inputs.memory_bytes(config, hosts.count(world.host))

    fullest = local_rows.index(max(local_rows))  # other ranks may have no rows to check with
    checked = on_rank(fullest, world, lambda: self_check(model, captured, call, config, memory))
    mixing = mixing_reason(captured, **json.loads(checked))
    if not mixing and world.rank == 0:
        warn_of_averages(captured.graph)
    if captured.changed_attributes and world.rank == 0:
        warn_of_attributes(captured.changed_attributes)
    if captured.made_dense:
        note_dense(captured.made_dense, optimizer, world)

    # The self-check holds much more than a stage ever will.
    if config.keep_freed_memory:
        freed_memory.keep_freed()
    if optimizer is not None and config.fused_optimizer:
        FusedStep(optimizer)  # which keeps it, as its hooks
    devices = planner_inputs.cluster(hosts, memory, _C.comm.measure_links(world))
    planner = None
    if path:
        plan_json = on_rank(
            0, world, lambda: plan_file.read_plan(path, captured.graph, sum(local_rows), world.size)
        )
    else:
        wanted = schedules.request(captured, model.training, config, mixing)
        synced = planner_inputs.whole_batch(captured.graph)
        table, traced = operators.profile(
            captured.graph, captured.objects, world, max(local_rows), config.profile_cache
        )
        costs = step_costs.measure(captured.graph, parameters, optimizer, world)
        # Only rank 0 calls it.
        planner = functools.cache(
            lambda: candidates.Planner(
                captured.graph,
                table,
                planner_inputs.optimizer_bytes(captured.graph, parameters, optimizer, config),
                devices,
                planner_inputs.request(sum(local_rows), config, mixing, synced, wanted),
                config.max_partition_num,
                mixing,
                step_prediction.StepPrediction(costs, traced.storages, local_rows, outputs),
                training_steps.held_bytes(model, optimizer),
            )
        )
        plan_json = on_rank(0, world, lambda: planner().plan())
    plan = _C.plan.Plan.from_json(plan_json)
    _C.plan.verify(plan, captured.graph, world.size)
    if path:
        schedules.check_loaded(plan, path, captured, model.training, config)
    if mixing and (plan.micro_batches > 1 or any(len(stage.ranks) > 1 for stage in plan.stages)):
        raise PlanError(
            f"{path} has several replicas or micro-batches, but "
            f"rows of the batch interact: {mixing}"
        )

    deployment = Deployment(
        model,
        optimizer,
        captured,
        plan,
        plan_file.bucket_bytes(plan, devices),
        local_rows,
        config,
        world,
        outputs,
        outside_loss,
    )
    if planner is not None and config.calibrate and torch.is_grad_enabled() and model.training:
        try_plans(deployment, planner, captured.flatten(args, kwargs), optimizer)
    else:
        deployment.hold()
    if world.rank == 0:
        if log_enabled("info"):
            print_plan(deployment.plan)
        if config.save_deployment:
            save_plan(deployment, config.deployment_file)
    return deployment


def log_enabled(level: str) -> bool:
    return _C.util.log_enabled(getattr(_C.util.Level, level), "deploy")


def print_plan(plan) -> None:
    log.info("deploy", "the plan\n" + _C.plan.show(plan))
