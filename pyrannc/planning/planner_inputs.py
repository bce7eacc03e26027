"""The planner's inputs for the job at hand, and plans from files."""

import contextlib
import functools
import math
import os

from pyrannc import _C, log
from pyrannc.errors import ConfigError
from pyrannc.job import transport
from pyrannc.optimizer import user_optimizer
from pyrannc.optimizer.state import master_weights
from pyrannc.planning import device_memory
from pyrannc.ranks import gathered

GIB = 2**30

# What an error of the planner calls a value that a setting forces.
_SETTINGS = {
    "force.stages": "partition_num",
    "force.replicas": "replica_nums",
    "force.micro_batches": "pipeline_num",
}


@contextlib.contextmanager
def named_by_settings():
    """An error of the planner about a forced value names the setting that forces it."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        for key, name in _SETTINGS.items():
            text = text.replace(f"plan request: $.{key}", name).replace(key, name)
        if text == str(error):
            raise
        raise ConfigError(text) from None


def memory_bytes(task, ranks_on_host: int) -> int:
    """What a rank may use of the devices on which the ranks compute: the least of all ranks.

    Collective.
    """
    transport.start(task.world, task.device, task.config)
    device_memory.take_workspaces(task.device)
    mine = memory_of(task.device, task, ranks_on_host)
    return min(gathered(task.world, mine))


def memory_of(device, task, ranks_on_host: int) -> int:
    """What this rank may use there: of the host the limit that is set, else its share; of an
    accelerator what is there for it, and no more than the limit.

    Where the backend of an accelerator does not say what is there, the limit alone counts, or the
    share of the host's memory, with a warning.
    """
    limit = math.ceil(task.config.mem_limit_gb * GIB)  # 0 is none, and less than a byte is not
    if device.type != "cpu":
        there = device_memory.available_bytes(device, task.model, task.optimizers)
        if there is None:
            return limit or _unknown(device, task.world, ranks_on_host)
        if task.config.share_device:
            there //= ranks_on_host
        return min(limit, there) if limit else there
    if limit and task.device == device:
        return limit
    return _share_of_host(ranks_on_host)


def _unknown(device, world, ranks_on_host) -> int:
    share = _share_of_host(ranks_on_host)
    if world.rank == 0:
        _tell_unknown(device, share)
    return share


@functools.cache  # once for a device: each plan asks several times
def _tell_unknown(device, share):
    log.warn(
        "deploy",
        f"the backend of {device} does not say how much memory it has: plans count on as much as "
        f"a rank's share of the host's, {share / GIB:.1f} GiB. Config(mem_limit_gb=...) says it",
    )


def _share_of_host(ranks_on_host) -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks_on_host


def cluster(hosts: list[str], memory: int, links, speeds=()):
    """The job's ranks as hosts with equal devices, also where some have fewer, or where ranks are
    dealt out to the hosts in turn.

    Args:
        hosts: Name of each rank's host.
        memory: Bytes that a rank may use.
        links: What ``_C.comm.measure_links`` found.
        speeds: Of each host, in the order in which they first occur; empty: all alike.
    """
    names = list(dict.fromkeys(hosts))
    per_host = max(map(hosts.count, names))
    even = hosts == [name for name in names for _ in range(per_host)]
    # Where the job has no pair of ranks of one kind, nothing is sent over such a link either.
    intra = links.intra_host or links.inter_host
    inter = links.inter_host or links.intra_host
    return _C.cost.Cluster(
        hosts=len(names),
        devices_per_host=per_host,
        device_memory_bytes=memory,
        intra_host=link(intra),
        inter_host=link(inter),
        host_of_rank=[] if even else list(map(names.index, hosts)),
        speed_of_host=list(speeds),
    )


def link(speed):
    """A link of the planner's cluster; a job of one rank has none, and any will do."""
    if speed is None:
        return _C.cost.Link(bandwidth_bytes_per_s=1e9, latency_ns=0.0)
    return _C.cost.Link(
        bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s, latency_ns=speed.latency_ns
    )


def whole_batch(graph) -> str:
    """The first module whose statistics are those of the whole batch; empty when there is none."""
    found = _C.ir.whole_batch_nodes(graph)
    return f"module '{graph.nodes[found[0]].module}'" if found else ""


def micro_batch_counts(global_rows, config) -> list[int]:
    """The powers of two from min_pipeline to max_pipeline, each with a row for each micro-batch;
    where there is none, the number that is closest to what the settings ask for."""
    most = max(1, min(config.max_pipeline, global_rows))
    if config.min_pipeline > most:
        log.warn(
            "deploy",
            f"min_pipeline = {config.min_pipeline}, but a batch of {global_rows} rows has no more "
            "micro-batches than rows",
        )
    least = min(config.min_pipeline, most)
    powers = (2**power for power in range(most.bit_length()))
    return [count for count in powers if count >= least] or [least]


def request(global_rows, config, mixing, synced, wanted_schedules, shard_optimizer=False):
    """The planner's ``_C.partition.Request``, from the settings.

    Args:
        mixing: Why rows cannot be told apart, or nothing.
        synced: What :func:`whole_batch` found.
        shard_optimizer: The replicas of a stage share the state of its optimizer.
    """
    counts, force = [], {}
    if config.partition_num:
        force["stages"] = config.partition_num
    if config.replica_nums:
        force["replicas"] = list(config.replica_nums)
    if config.pipeline_num:
        force["micro_batches"] = config.pipeline_num
        counts = [config.pipeline_num]
    if mixing:
        if max(config.replica_nums, default=1) > 1 or config.pipeline_num > 1:
            raise ConfigError(
                "rows of the batch interact, so each stage must have one replica and one "
                f"micro-batch, which replica_nums or pipeline_num forbid: {mixing}"
            )
        log.warn("deploy", f"one replica and one micro-batch, because rows interact: {mixing}")
        force["micro_batches"] = 1
        counts = [1]
    if synced:
        for name in ("pipeline_num", "min_pipeline"):
            if getattr(config, name) > 1:
                raise ConfigError(
                    f"{name} = {getattr(config, name)}, but with sync_batch_norm the statistics of "
                    f"{synced} are those of the whole batch, which must then be one micro-batch.\n"
                    f"  Leave {name} or sync_batch_norm out."
                )
        force["micro_batches"] = 1
        counts = [1]
    recompute = config.recompute
    if config.tensor_parallel != 1:
        if recompute == "segments":
            raise ConfigError(
                "recompute = 'segments' does not go with tensor_parallel, under which a stage runs "
                "again as a whole.\n  Set recompute to 'auto' or 'stage'."
            )
        recompute = "stage" if recompute == "auto" else recompute
    return _C.partition.Request(
        global_rows,
        memory_margin=config.mem_margin,
        micro_batches=counts or micro_batch_counts(global_rows, config),
        recompute=recompute,
        force=_C.partition.Force(**force),
        shard_optimizer=shard_optimizer,
        **wanted_schedules,
    )


def optimizer_bytes(held, parameters, task) -> list[float]:
    """For each parameter of a graph, in its order, the bytes of its optimizer state.

    Args:
        held: What :func:`pyrannc.planning.groups.held` found.
    """
    copies, factor = {}, task.config.opt_param_factor
    for optimizer in task.optimizers:
        copies |= user_optimizer.state_copies(optimizer, factor)
    if task.counts_state:
        copies = {id(each): factor for each in parameters.values() if each.requires_grad}
    return [
        _state_bytes(parameters[value.name], copies, task) * mine / whole
        for value, mine, whole in held
        if value.kind != "constant"
    ]


def _state_bytes(parameter, copies, task):
    held = copies.get(id(parameter))
    if held is None:
        return 0
    if task.master_weights:
        return held * master_weights.stepped_bytes(parameter) + master_weights.bytes_of(parameter)
    return held * parameter.nbytes
