"""What happens once, in the first call: from a captured model to a plan at work on every rank.

agree -> prove -> measure -> choose -> start, each of which returns what the next ones need.
"""

import dataclasses

import torch

from pyrannc import _C, log, progress
from pyrannc.capture.arguments.call import Call
from pyrannc.errors import ConfigError, PlanError, TraceError
from pyrannc.job import process, transport
from pyrannc.job.agreement import MODE, hosts_of, same_graph, same_settings, same_versions
from pyrannc.job.same_rows import warn_of_same_rows
from pyrannc.optimizer import per_number
from pyrannc.original import switches
from pyrannc.planning import (
    candidates,
    dry_run,
    groups,
    plan_file,
    planner_inputs,
    room,
    schedules,
)
from pyrannc.profiling import host_speeds, operators, step_costs
from pyrannc.profiling.links import Links, measure_links
from pyrannc.ranks import on_rank
from pyrannc.report import destinations, graph_files, resident_memory, trace, training_steps
from pyrannc.running.deployment import Deployment
from pyrannc.running.task import Task
from pyrannc.selfcheck import findings
from pyrannc.state import mover, named_tensors
from pyrannc.trial import verify
from pyrannc.trial.try_plans import try_plans


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What is the same on all ranks, or known of each."""

    hosts: list  # [rank], names
    memory_bytes: int  # that this rank may use
    local_rows: list  # [rank], of the first batch
    captured: object  # the task's, with rank 0's graph


@dataclasses.dataclass(frozen=True)
class Proved:
    """What the planner may do to the batch."""

    mixing: str  # why rows cannot be told apart, or nothing
    request: object = None  # _C.partition.Request; None for a plan from a file
    sharing: object = None  # the same where the planner may let replicas share the optimizer


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is known of the ranks and, unless the plan comes from a file, of the model on them."""

    devices: object  # _C.cost.Cluster
    links: Links
    fastest: list | None = None  # the ranks that time operators, which are all equally fast
    operators: object = None  # _C.cost.CostTable
    storages: list | None = None  # see profiling.operators
    step: step_costs.Measured | None = None
    timed: dict | None = None  # all operators, by what they cost by
    group: groups.Group | None = None  # whose graph it is of; None: the whole


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A plan that this job can run."""

    plan: object  # _C.plan.Plan
    bucket_bytes: int
    planner: candidates.Planner | None = None  # that made it, on rank 0


def deploy(task: Task, call) -> Deployment:
    """Everything that happens once, for ``call``: its arguments and keyword arguments.

    Collective. What one rank finds wrong while it checks and plans is raised on every rank.
    """
    shown = task.world.rank == 0
    while True:
        try:
            agreed = agree(task, call)
            with progress.phase("comparing the captured graph with the model", shown):
                proved = prove(task, call, agreed)
            break
        except TraceError as error:  # on every rank
            task = dataclasses.replace(task, captured=task.front_ends.after(error))
    task = dataclasses.replace(task, captured=agreed.captured)
    measured = measure(task, agreed, proved)
    if task.config.partitioning_dry_run_np:
        dry_run.plan(task, agreed, measured, proved, make_planner)
    with progress.phase("looking for the fastest plan", shown):
        chosen = choose(task, agreed, proved, measured)
    places = max(stage.places for stage in chosen.plan.stages)
    task = dataclasses.replace(task, config=task.config.with_groups(places))
    with progress.phase("running plans before the first step", shown):
        return start(task, call, agreed, chosen)


def agree(task, call) -> Agreed:
    """Compares settings and graphs of all ranks, and gives them rank 0's graph and parameters."""
    world, config = task.world, task.config
    others = {
        "load_deployment": task.plan_file is not None,
        "optimizer": [type(each).__name__ for each in task.optimizers],
        "outputs": task.outputs.name,
        "zero": task.zero,
        "master_weights": task.master_weights,
        "outside_loss": task.outside_loss,
        MODE: task.model.training,
        "sync_params_on_init()": switches.is_on("sync_params_on_init"),
    }
    same_versions(world)
    same_settings(config, others, world)
    on_rank(0, world, lambda: destinations.check(config))
    if config.tensor_parallel != "auto":
        on_rank(0, world, lambda: check_groups(task, world, config.tensor_parallel))
    if task.zero == "parameters":
        on_rank(0, world, lambda: check_shared_parameters(task, world))
    captured, local_rows = same_graph(task.captured, task.captured.batch_size(*call), world)
    if task.model.training and torch.is_grad_enabled():
        warn_of_same_rows(Call(*call).tensors, captured.batch_dims, world)
    if others["sync_params_on_init()"] and config.sync_params_on_init and world.size > 1:
        mover.all_of_rank_0(world, task.model)
    hosts = hosts_of(world)
    memory = planner_inputs.memory_bytes(task, hosts.count(world.host))
    return Agreed(hosts, memory, local_rows, captured)


def check_groups(task, world, size) -> None:
    """Refuses what ranks that compute layers together cannot do yet."""
    if size == 1:
        return
    if world.size % size:
        raise ConfigError(
            f"tensor_parallel = {size} does not divide the {world.size} ranks of the job into "
            "groups"
        )
    beside = {
        "verify_partitioning": task.config.verify_partitioning,
        "partitioning_dry_run_np": bool(task.config.partitioning_dry_run_np),
    }
    for name, wanted in beside.items():
        if wanted:
            raise ConfigError(f"tensor_parallel does not go with {name} yet; leave one of them out")
    for optimizer in task.optimizers:
        per_number.check(optimizer, "tensor_parallel")


def check_shared_parameters(task, world) -> None:
    """Refuses what replicas that share parameters cannot do yet."""
    config = task.config
    beside = {
        "tensor_parallel": config.tensor_parallel != 1,
        "verify_partitioning": config.verify_partitioning,
        "partitioning_dry_run_np": bool(config.partitioning_dry_run_np),
        'device_transport = "nccl"': transport.in_order(world, task.device, config),
    }
    for name, wanted in beside.items():
        if wanted:
            raise ConfigError(
                f'zero="parameters" does not go with {name} yet; leave one of them out'
            )


def why_no_groups(task, captured) -> str:
    """Why no ranks can compute layers together; empty where they can. Collective."""
    world = task.world

    def fault():
        try:
            check_groups(task, world, world.size)
        except ConfigError as error:
            return str(error).splitlines()[0]
        return ""

    graph = captured.graph
    inputs = [graph.values[index] for index in graph.inputs]
    inside = [value.name for value in inputs if _C.ir.rows_are_inside(value)]
    if inside:
        return f"argument '{inside[0]}' has its rows inside another dimension"
    return on_rank(0, world, fault)


def prove(task, call, agreed) -> Proved:
    """Compares the captured graph with the model, and says what cannot be as in the model."""
    world, captured, config = task.world, agreed.captured, task.config
    fullest = agreed.local_rows.index(max(agreed.local_rows))  # others may have no rows at all
    checked = on_rank(
        fullest,
        world,
        # The rank's own graph, which draws random numbers in the order of its own model.
        lambda: findings.self_check(
            task.model,
            task.captured,
            call,
            config,
            planner_inputs.memory_of(task.home, task, agreed.hosts.count(world.host)),
            task.home if task.home != task.device else None,
            task.lacks_values,
        ),
    )
    mixing = findings.mixing_reason(captured, **checked)
    findings.tell(captured, mixing, task.optimizers, world)
    if task.plan_file is not None:
        return Proved(mixing)
    wanted = schedules.request(captured, task.model.training, config, mixing, task.outputs)
    if task.model.training and not mixing and world.rank == 0:
        schedules.tell_loss_outside(captured, config, task.outputs)
    synced = planner_inputs.whole_batch(captured.graph)
    rows = sum(agreed.local_rows)

    def request(shard):
        made = on_rank(
            0,
            world,
            lambda: planner_inputs.request(rows, config, mixing, synced, wanted, shard).to_json(),
        )
        with planner_inputs.named_by_settings():
            return _C.partition.Request.from_json(made)

    may_share = task.zero == "auto" and not mixing and world.size > 1
    may_share = may_share and config.tensor_parallel in (1, "auto")
    return Proved(
        mixing, request(task.zero in (True, "parameters")), request(True) if may_share else None
    )


def measure(task, agreed, proved) -> Measured:
    """Measures what the planner has to know: links, operators, and steps of the optimizer."""
    if task.config.keep_freed_memory:  # from here on, as what the self-check held is too much
        process.keep_freed_memory()
    links = measure_links(task, agreed.hosts)
    if task.plan_file is not None:
        return Measured(planner_inputs.cluster(agreed.hosts, agreed.memory_bytes, links), links)
    speeds = host_speeds.measure(task, agreed.hosts)
    devices = planner_inputs.cluster(agreed.hosts, agreed.memory_bytes, links, speeds.of_hosts)
    ways = task.config.tensor_parallel
    group = None
    if ways not in (1, "auto"):
        group = groups.of(task.captured.graph, ways, devices, task.config.sequence_parallel)
    measured = measure_operators(
        task, agreed, Measured(devices, links, speeds.fastest, timed={}, group=group)
    )
    tensors = named_tensors.tensors(task.model)
    costs = step_costs.measure(tensors, task, speeds.fastest, agreed.hosts)
    process.give_back_freed_memory()  # single operators on whole batches need more than steps
    return dataclasses.replace(measured, step=costs)


def measure_operators(task, agreed, measured) -> Measured:
    """``measured`` with the operators of its group, or of the whole graph. Collective."""
    captured, config, group = task.captured, task.config, measured.group
    alone = captured.alone  # whose graph costs the same at any other number
    table, traced = operators.profile(
        group.sharded.graph if group else captured.graph,
        captured.objects,
        task.world,
        max(agreed.local_rows),
        config.profile_cache,
        task.device,
        config.graph_profile_file if config.load_graph_profile else "",
        config.graph_profile_file if config.save_graph_profile else "",
        [alone.rows, 2 * alone.rows] if alone else None,
        measured.timed,
        measured.fastest,
    )
    return dataclasses.replace(measured, operators=table, storages=traced.storages)


def choose(task, agreed, proved, measured) -> Chosen:
    """Reads the plan from its file, or makes it; both on rank 0 for all ranks."""
    world, graph, path = task.world, task.captured.graph, task.plan_file
    planner = None
    if path is None and task.config.tensor_parallel == "auto":
        measured, planner = choose_groups(task, agreed, proved, measured)

    def content():
        nonlocal planner
        if path is not None:
            return plan_file.read_plan(path, graph, sum(agreed.local_rows), world.size)
        planner = planner or make_planner(task, agreed, proved, measured)
        return planner.plan_of_ranks().to_json()

    plan = _C.plan.Plan.from_json(on_rank(0, world, content))
    places = max(stage.places for stage in plan.stages)
    if path is not None:
        ways = task.config.tensor_parallel
        if ways == "auto":
            on_rank(0, world, lambda: check_groups(task, world, places))
        elif ways != places:
            raise PlanError(
                f"{path} has groups of {places} ranks, but tensor_parallel is {ways}.\n"
                f'  Set tensor_parallel = {places} or "auto", or take another plan.'
            )
    try:
        _C.plan.verify(plan, graph, world.size)
    except PlanError as error:
        if path is None:
            raise
        raise PlanError(f"{path} is no plan for this job: {error}") from None
    if path is not None:
        schedules.check_loaded(plan, path, task.captured, task.model.training, task.config)
        if task.zero != "auto":  # the state is shared out as the script says, not the file
            plan.shard_optimizer = bool(task.zero)
    if task.zero == "parameters":
        plan = _C.plan.share_parameters(plan, graph, task.captured.preludes)
        if world.rank == 0 and not any(stage.shared for stage in plan.stages):
            log.info("deploy", "zero: no stage has replicas to share its parameters")
    else:
        plan = _C.plan.without_shared_parameters(plan)
    if task.config.partition_num > 1 and world.rank == 0:
        warn_of_nothing_to_do(plan)
    replicas = max(len(stage.ranks) // stage.places for stage in plan.stages)
    cuts_batch = plan.micro_batches > 1 or replicas > 1
    if proved.mixing and cuts_batch:
        raise PlanError(
            f"{path} has several replicas or micro-batches, but "
            f"rows of the batch interact: {proved.mixing}"
        )
    devices = measured.group.devices if measured.group else measured.devices
    return Chosen(plan, plan_file.bucket_bytes(plan, devices), planner)


def choose_groups(task, agreed, proved, measured) -> tuple:
    """What was measured for the best number of ranks that compute layers together, and, on rank 0,
    the planner that has planned with it. Collective."""
    choice = groups.Choice(task.world, sum(agreed.local_rows))
    planners = {}

    def find(ways, measured):
        planners[ways] = make_planner(task, agreed, proved, measured)
        planners[ways].plan_of_ranks()  # all stages can be cut
        return planners[ways].plan()

    choice.try_plan(1, measured, lambda: find(1, measured))
    fault = why_no_groups(task, agreed.captured) if task.world.size > 1 else ""
    for ways in choice.numbers():
        if fault:
            choice.refuse(ways, fault)
            continue
        graph, sequence = task.captured.graph, task.config.sequence_parallel
        group = groups.of(graph, ways, measured.devices, sequence)
        if choice.cannot_gain(group, measured.operators):
            continue
        of_group = measure_operators(task, agreed, dataclasses.replace(measured, group=group))
        choice.try_plan(ways, of_group, lambda w=ways, m=of_group: find(w, m))
    choice.tell()
    ways, measured = choice.best
    return measured, planners.get(ways)


def warn_of_nothing_to_do(plan) -> None:
    """Says which stage of a plan with a forced number of them holds one operator and no weights."""
    for number, stage in enumerate(plan.stages):
        weights = stage.predicted.param_bytes if stage.predicted else 0
        if len(stage.nodes) == 1 and not weights:
            log.warn(
                "deploy",
                f"partition_num = {len(plan.stages)} leaves stage {number} a single operator, "
                f"'{stage.nodes[0]}': the model is too small for so many stages, and fewer would "
                "be faster",
            )


def make_planner(task, agreed, proved, measured) -> candidates.Planner:
    """The planner of this job, on rank 0."""
    graph, parameters, group = (
        task.captured.graph,
        named_tensors.tensors(task.model),
        measured.group,
    )
    ways = group.ways if group else 1
    held = groups.held(graph, group)
    optimizer_bytes = planner_inputs.optimizer_bytes(held, parameters, task)
    saved = [_C.cost.SavedStorage(*storage) for storage in measured.storages]
    if group:
        given = measured.operators, optimizer_bytes, saved, ways, group.link
        profile, saved = _C.cost.fold_group(graph, group.sharded, *given)
    else:
        profile = _C.cost.fold(graph, measured.operators, optimizer_bytes, saved)
    costs = step_costs.of_parts(measured.step, held, parameters, task, ways)
    step = _C.predict.StepModel(
        graph=group.graph if group else graph,
        profile=profile,
        cluster=group.devices if group else measured.devices,
        costs=costs.time,
        optimizer=costs.optimizer,
        saved=saved,
        local_rows=_C.plan.rows_of_groups(agreed.local_rows, ways),
        outputs=task.outputs,
    )
    return candidates.Planner(
        step,
        proved.request,
        task.config,
        proved.mixing,
        training_steps.held_bytes(task.model, task.optimizers),
        proved.sharing if ways == 1 else None,
        (lambda plan: group.of_ranks(plan, graph)) if group else None,
    )


def start(task, call, agreed, chosen) -> Deployment:
    """Puts the plan to work, or a faster one after some runs; from then on each rank holds its part
    of the model."""
    deployment = Deployment(task, agreed.local_rows, chosen.plan, chosen.bucket_bytes)
    connects = transport.in_order(task.world, task.device, task.config)
    if connects and task.plan_file is None:
        room.make(task, agreed, chosen.planner, deployment)
    wanted = task.config.verify_partitioning
    reference = verify.Reference(task, call, agreed.local_rows, deployment.plan) if wanted else None
    trains = torch.is_grad_enabled() and task.model.training
    in_parts = task.config.tensor_parallel > 1 or task.zero == "parameters"
    if task.plan_file is None and task.config.calibrate and trains and not in_parts:
        inputs = task.captured.flatten(*call)
        try_plans(deployment, chosen.planner, inputs)
    else:
        deployment.hold()
    deployment.share_state()
    process.give_back_freed_memory()  # of the runs, and of the rest of the model
    if connects:
        room.warn_of_little(task, agreed, deployment.plan)
    if task.config.keep_freed_memory:
        process.keep_freed_memory(resident_memory.most_of_rank(deployment.plan, task.world.rank))
    held = training_steps.held_bytes(task.model, task.optimizers)
    deployment.process_bytes = resident_memory.predict(
        deployment.plan, held, task.world, on_host=task.device.type == "cpu"
    )
    if task.world.rank == 0 and _C.util.log_enabled(_C.util.Level.info, "deploy"):
        log.info("deploy", "the plan\n" + _C.plan.show(deployment.plan))
    if task.config.save_deployment:
        plan_file.save_plan(deployment, task.config.deployment_file)
    if task.config.dump_graph:
        picture = deployment.plan, task.captured.graph, task.config.dump_graph_prefix
        on_rank(0, task.world, lambda: graph_files.write(*picture))
    deployment.steps.observe(task.config)
    if task.config.trace_events:
        file, steps = task.config.event_trace_file, task.config.trace_steps
        deployment.steps.trace = trace.Trace(deployment, file, steps)
    if reference:
        reference.compare(deployment)
    if task.config.verify_recomp:
        verify.recompute(deployment, task.captured.flatten(*call))
    return deployment
