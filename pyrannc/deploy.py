"""The sequence of phases behind the first call, readable from top to bottom.

capture -> agree -> self-check -> profile -> plan on rank 0 -> broadcast -> settle -> run.
"""

import functools
import json

import torch

from pyrannc import (
    _C,
    check,
    files,
    host_memory,
    log,
    plan_search,
    planning,
    profile,
    schedules,
    state,
    step_costs,
    steps,
    threads,
)
from pyrannc.agreement import on_rank, same_graph, same_settings
from pyrannc.deployment import Deployment
from pyrannc.errors import ConfigError, PlanError
from pyrannc.fused_step import FusedStep
from pyrannc.settle import settle


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
    parameters = state.tensors(model)
    if config.sync_params_on_init and world.size > 1:
        for tensor in {id(tensor): tensor for tensor in parameters.values()}.values():
            state.broadcast(world, tensor, 0, list(range(world.size)))
    hosts = [item.decode() for item in world.all_gather(world.host.encode())]
    threads.share_cores(world, hosts)
    memory = planning.memory_bytes(config, hosts.count(world.host))

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
        host_memory.keep_freed()
    if optimizer is not None and config.fused_optimizer:
        FusedStep(optimizer)  # which keeps it, as its hooks
    devices = planning.cluster(hosts, memory, _C.comm.measure_links(world))
    planner = None
    if path:
        plan_json = on_rank(
            0, world, lambda: planning.read_plan(path, captured.graph, sum(local_rows), world.size)
        )
    else:
        wanted = schedules.request(captured, model.training, config, mixing)
        synced = planning.whole_batch(captured.graph)
        table, traced = profile.profile(
            captured.graph, captured.objects, world, max(local_rows), config.profile_cache
        )
        costs = step_costs.measure(captured.graph, parameters, optimizer, world)
        # Only rank 0 calls it.
        planner = functools.cache(
            lambda: plan_search.Planner(
                captured.graph,
                table,
                planning.optimizer_bytes(captured.graph, parameters, optimizer, config),
                devices,
                planning.request(sum(local_rows), config, mixing, synced, wanted),
                config.max_partition_num,
                mixing,
                step_costs.Step(costs, traced.storages, local_rows, outputs),
                steps.held_bytes(model, optimizer),
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
        planning.bucket_bytes(plan, devices),
        local_rows,
        config,
        world,
        outputs,
        outside_loss,
    )
    if planner is not None and config.calibrate and torch.is_grad_enabled() and model.training:
        settle(deployment, planner, captured.flatten(args, kwargs), optimizer)
    else:
        deployment.hold()
    if world.rank == 0:
        if log_enabled("info"):
            print_plan(deployment.plan)
        if config.save_deployment:
            save_plan(deployment, config.deployment_file)
    return deployment


def self_check(model, captured, call, config, memory) -> str:
    """Compares the capture with eager when it fits; returns what it proved, as JSON."""
    args, kwargs = call
    needed = 3 * sum(tensor.nbytes for tensor in state.tensors(model).values())
    if not config.self_check:
        log.info("deploy", "self-check of the capture skipped: self_check is off")
    elif needed > memory:
        log.info(
            "deploy",
            "self-check of the capture skipped: the whole model needs about "
            f"{_C.util.human_bytes(needed)}, a rank has {_C.util.human_bytes(memory)}",
        )
    else:
        report = check.check(model, captured, args, kwargs)
        report.raise_if_wrong()
        log.info("deploy", f"self-check of the capture: {report}")
        return json.dumps({"proved": report.rows_proved, "refuted": report.rows_interact})
    return json.dumps({"proved": False, "refuted": ""})


def mixing_reason(captured, proved: bool, refuted: str) -> str:
    """Why only the whole batch at once gives the model's numbers; empty when rows stay apart."""
    graph = captured.graph
    mixes = _C.ir.row_mixes(graph)
    if mixes:
        node = graph.nodes[mixes[0].node]
        return f"{mixes[0].reason} (module '{node.module}', {node.source})"
    if refuted:
        return f"the self-check found that {refuted}"
    if proved:
        return ""
    for part in (*captured.preludes, graph):
        for node in part.nodes:
            outputs = [part.values[value] for value in node.outputs if value is not None]
            if not all(value.rows.proved for value in outputs):
                return (
                    f"it is not known whether {node.op} keeps the rows of the batch apart, and the "
                    f"self-check did not prove it (module '{node.module}', {node.source})"
                )
    return ""


def warn_of_averages(graph) -> None:
    """Says what is not the number of the whole batch, once."""
    found = [node for node in graph.nodes if node.by_share]
    if not found:
        return
    node = found[0]
    others = f", and {len(found) - 1} more" if len(found) > 1 else ""
    log.warn(
        "deploy",
        f"{node.op} (module '{node.module}', {node.source}{others}) is not linear in a mean over "
        "the batch. Each micro-batch computes it from its own rows, and the results are averaged "
        "by rows: with several replicas or micro-batches this is not what one process gives. "
        "Config(exact_loss=True) keeps the whole batch together.",
    )


def warn_of_attributes(changed) -> None:
    """Says which attributes of the model no longer change, once."""
    names = ", ".join(f"'{path}'" for path in changed[:3])
    others = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    log.warn(
        "deploy",
        f"forward() changes attributes of the model: {names}{others}. It runs as a captured graph "
        "from now on, which does not update them, and computes with what they held at its capture. "
        "Return a tensor that you want to see as an output of forward(), and keep numbers that "
        "change in a buffer.",
    )


def note_dense(nodes, optimizer, world) -> None:
    """Says once that gradients which the model wants sparse are dense."""
    node = nodes[0]
    others = f", and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    place = f"{node.op} (module '{node.module}', {node.source}{others})"
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigError(
            f"SparseAdam takes sparse gradients only, but that of {place} is dense: micro-batches "
            "and replicas sum gradients in arrays.\n  Use Adam or AdamW."
        )
    if world.rank == 0:
        log.info(
            "deploy", f"{place} has sparse=True, but its gradient is dense, with equal numbers"
        )


def check_save(config) -> None:
    """Raises ConfigError where the plan could not be written, before the work that it takes."""
    if not config.save_deployment:
        return
    try:
        files.check_writable(config.deployment_file)
    except OSError as error:
        raise ConfigError(
            f"save_deployment: the plan cannot be written to {config.deployment_file}: "
            f"{error.strerror}.\n  Set deployment_file to a file in a folder that rank 0 may write "
            "to."
        ) from None


def save_plan(deployment, path) -> None:
    """Writes the plan on rank 0; a file that is there is replaced as a whole."""
    if deployment.world.rank == 0:
        content = json.dumps(json.loads(deployment.plan.to_json()), indent=1)
        files.write_whole(path, content + "\n")


def log_enabled(level: str) -> bool:
    return _C.util.log_enabled(getattr(_C.util.Level, level), "deploy")


def print_plan(plan) -> None:
    log.info("deploy", "the plan\n" + _C.plan.show(plan))
