"""The planner's inputs and its answer for the job at hand."""

import collections
import dataclasses
import functools
import json
import os
import time
from pathlib import Path

from pyrannc import _C, log, optim
from pyrannc.errors import ConfigError, InfeasibleError, PlanError, RaNNCError

GIB, MIB = 2**30, 2**20

# Of the time by operators: a plan that is slower by more is not worth a run. (Two stages with the
# loss over a large vocabulary took 16 % less than six, of which operators say 2 % more.)
REACH = 0.25
# Plans of other shapes, and seconds to find them, after which no other is searched for.
MOST_SHAPES, MOST_PLANNING_S = 3, 2.0


def memory_bytes(config, ranks_on_host: int) -> int:
    """What one rank may use: the limit that is set, else its share of the host's memory."""
    if config.mem_limit_gb:
        return int(config.mem_limit_gb * GIB)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks_on_host


def cluster(hosts: list[str], memory: int, links):
    """The job's ranks as hosts with equally many devices; ``hosts[rank]`` is a name.

    Ranks that are not laid out host by host, equally many on each, count as a host each.

    Args:
        hosts: Name of each rank's host.
        memory: Bytes that a rank may use.
        links: What ``_C.comm.measure_links`` found.
    """
    names = list(dict.fromkeys(hosts))
    per_host = len(hosts) // len(names)
    even = hosts == [name for name in names for _ in range(per_host)]
    shape = (len(names), per_host) if even else (len(hosts), 1)
    # Where the job has no pair of ranks of one kind, nothing is sent over such a link either.
    intra = links.intra_host or links.inter_host
    inter = links.inter_host or links.intra_host
    return _C.cost.Cluster(
        hosts=shape[0],
        devices_per_host=shape[1],
        device_memory_bytes=memory,
        intra_host=link(intra),
        inter_host=link(inter),
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
    found = (node for node in graph.nodes if node.whole_batch)
    return next((f"module '{node.module}'" for node in found), "")


def request(global_rows, config, mixing, synced, wanted_schedules) -> str:
    """The planner's request, as JSON, from the settings.

    Args:
        mixing: Why rows cannot be told apart, or nothing.
        synced: What :func:`whole_batch` found.
    """
    counts = [1]
    while counts[-1] * 2 <= min(config.max_pipeline, global_rows):
        counts.append(counts[-1] * 2)
    force = {}
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
    return json.dumps(
        {
            "format": "rannc-plan-request",
            "version": 1,
            "global_batch": global_rows,
            "memory_margin": config.mem_margin,
            "micro_batches": [count for count in counts if count >= config.min_pipeline] or counts,
            "recompute": config.recompute,
            "force": force,
            **wanted_schedules,
        }
    )


def optimizer_bytes(graph, parameters, optimizer, config) -> list[float]:
    """For each parameter of ``graph``, in its order, the bytes of its optimizer state."""
    copies = optim.state_copies(optimizer, config.opt_param_factor)
    return [
        copies.get(id(parameters[value.name]), 0) * parameters[value.name].nbytes
        for value in graph.values
        if value.kind in ("parameter", "buffer")
    ]


@dataclasses.dataclass
class Planner:
    """Makes the plans of one job, on rank 0.

    Attributes:
        graph: ``_C.ir.Graph``.
        table: ``_C.cost.CostTable``.
        state_bytes: What :func:`optimizer_bytes` found.
        devices: What :func:`cluster` made.
        wanted: What :func:`request` made.
        most_blocks: Of the search; 0: by the cluster.
        mixing: Why rows cannot be told apart, or nothing.
        step: ``step_costs.Step``.
        held_bytes: What a rank with the whole model holds before the first step.
    """

    graph: object
    table: object
    state_bytes: list
    devices: object
    wanted: str
    most_blocks: int
    mixing: str
    step: object
    held_bytes: int

    def plan(self) -> str:
        """The best one that fits, as JSON."""
        plan = _C.partition.make_plan(
            self._accumulating,
            self.devices,
            _C.partition.Request.from_json(self.wanted),
            max_blocks=self.most_blocks,
            one_replica=bool(self.mixing),
        )
        if not plan.feasible:
            raise InfeasibleError(plan.reason)
        return json.dumps(self._completed(plan))

    def with_micro_batches(self, plan, count) -> str:
        """What plan() would have returned, had the search found ``plan``, which plan() returned,
        with ``count`` micro-batches; empty where that is not possible or does not fit."""
        changed = _C.partition.with_micro_batches(
            self._accumulating,
            self.devices,
            _C.partition.Request.from_json(self.wanted),
            plan,
            count,
        )
        if not changed.feasible:
            return ""
        try:
            content = self._completed(changed)
        except PlanError:  # such as a share in which there is nothing to normalise
            return ""
        return json.dumps(content) if self._step_fits(content) else ""

    def of_other_shapes(self, plan) -> list[str]:
        """Plans of other shapes (stages, their replicas, schedule) that may be worth a run beside
        ``plan``, which plan() returned: the best of each, the fastest by operators first.

        Every rank has the whole model until one of them is taken, so there are none where that is
        too much for a run of ``plan``.
        """
        content = json.loads(plan.to_json())
        if not self._fits_beside_model(content):
            return []
        found, begin = [], time.monotonic()
        shapes = {shape(content)}
        for other in content["notes"]["alternatives"]:
            if other["peak_bytes"] > self._limit or shape(other) in shapes:
                continue
            if other["iteration_ns"] > (1 + REACH) * plan.iteration_ns:
                break
            if len(found) == MOST_SHAPES or time.monotonic() - begin > MOST_PLANNING_S:
                break
            shapes.add(shape(other))
            text = self._of_shape(plan, other)
            if text:
                found.append(text)
        return found

    def _of_shape(self, plan, other) -> str:
        wanted = json.loads(self.wanted)
        replicas = [len(stage.ranks) for stage in plan.stages]
        least = min(2, self._fewest_rows(replicas, plan.micro_batches))
        wanted["micro_batches"] = [
            count
            for count in wanted["micro_batches"]
            if self._fewest_rows(other["replicas"], count) >= least
        ]
        if not wanted["micro_batches"]:
            return ""
        layout = "+".join(map(str, other["replicas"]))
        log.info(
            "deploy", f"a plan with replicas {layout}, schedule {other['schedule']}, to run it, too"
        )
        planned = _C.partition.plan_of_shape(
            self._accumulating,
            self.devices,
            _C.partition.Request.from_json(json.dumps(wanted)),
            plan,
            replicas=other["replicas"],
            schedule=other["schedule"],
            interleave=other["interleave"],
            max_blocks=self.most_blocks,
            one_replica=bool(self.mixing),
        )
        if not planned.feasible:
            return ""
        try:
            content = self._completed(planned)
        except PlanError:
            return ""
        fits = self._step_fits(content) and self._fits_beside_model(content)
        return json.dumps(content) if fits else ""

    def _step_fits(self, content) -> bool:
        """By the runtime's own figure, beside that of the planner."""
        return max(content["notes"]["step_peak_bytes"]) <= self._limit

    def _fits_beside_model(self, content) -> bool:
        """Whether a rank has memory for a run of the plan beside all that it holds before the first
        step. A run makes no state of the optimizer."""
        needed = collections.defaultdict(float)
        peaks = {}
        for stage, peak in zip(content["stages"], content["notes"]["step_peak_bytes"], strict=True):
            state = stage["predicted"]["optimizer_bytes"] + stage["predicted"]["param_bytes"]
            for rank in stage["ranks"]:
                needed[rank] -= state
                peaks[rank] = peak  # of all its stages
        return all(
            peak + needed[rank] + self.held_bytes <= self._limit for rank, peak in peaks.items()
        )

    @property
    def _limit(self):
        """Bytes that a plan may take on a rank."""
        return self.devices.device_memory_bytes * (1 - json.loads(self.wanted)["memory_margin"])

    def other_micro_batches(self, plan) -> list[int]:
        """Numbers of micro-batches that may be worth a run, beside that of ``plan``."""

        def may_be(count):
            if count <= plan.micro_batches:
                return count < plan.micro_batches
            # More fill a pipeline, and of one stage there is none.
            replicas = [len(stage.ranks) for stage in plan.stages]
            return len(replicas) > 1 and self._fewest_rows(replicas, count) > 1

        return [count for count in json.loads(self.wanted)["micro_batches"] if may_be(count)]

    def _fewest_rows(self, replicas, micro_batches) -> int:
        """In the smallest share. Where it is one, operators may compute in another way: batch
        normalisation refuses it."""
        return json.loads(self.wanted)["global_batch"] // micro_batches // max(replicas)

    @functools.cached_property
    def _folded(self):
        return _C.cost.fold(self.graph, self.table, self.state_bytes)

    @functools.cached_property
    def _accumulating(self):
        """With what the step's own prediction adds to each micro-batch but the first."""
        return _C.cost.with_accumulation(
            self._folded, self.step.costs.time["accumulate_ns_per_byte"]
        )

    def _completed(self, plan) -> dict:
        """The content of the file of ``plan``, with what the planner's core does not know."""
        global_rows = json.loads(self.wanted)["global_batch"]
        content = json.loads(_C.plan.with_summary(plan, self.graph, global_rows).to_json())
        content.setdefault("notes", {}).update(
            fingerprint=self.graph.fingerprint(),
            global_batch=global_rows,
            world=self.devices.hosts * self.devices.devices_per_host,
            memory_limit_bytes=int(self.devices.device_memory_bytes),
            **self.step.predict(plan, self.graph, self._folded, self.devices),
        )
        return content


def shape(content):
    """Of a plan, or of another one in its notes."""
    replicas = content.get("replicas") or [len(stage["ranks"]) for stage in content["stages"]]
    return tuple(replicas), content["schedule"], content["interleave"]


def read_plan(path, graph, global_rows, world_size) -> str:
    """A plan from a file, after a look at whether it was made for this job."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        plan = _C.plan.Plan.from_json(text)
    except OSError as error:
        raise ConfigError(f"load_deployment: {error}") from None
    except (UnicodeDecodeError, RaNNCError) as error:
        raise ConfigError(
            f"load_deployment: {path} is no whole plan file: {error}\n  Take another file, or plan "
            "anew with save_deployment."
        ) from None
    if (synced := whole_batch(graph)) and plan.micro_batches > 1:
        raise PlanError(
            f"{path} has {plan.micro_batches} micro-batches, but with sync_batch_norm the "
            f"statistics of {synced} are those of the whole batch, which must then be one.\n"
            "  Plan anew with sync_batch_norm, or leave it off."
        )
    notes = json.loads(plan.notes or "{}")
    now = {"fingerprint": graph.fingerprint(), "world": world_size}
    for name, value in now.items():
        if name in notes and notes[name] != value:
            hint = {
                "fingerprint": "the model, its settings or its inputs have changed",
                "world": "number of ranks",
            }[name]
            raise PlanError(
                f"{path} was made for {name} {notes[name]}, this job has {value} ({hint})"
            )
    bucket = notes.get("bucket_bytes", MIB)
    if not isinstance(bucket, int) or bucket < MIB:
        raise PlanError(
            f"{path}: bucket_bytes is {bucket!r}, but gradients are summed in buckets of a whole "
            f"number of bytes, at least {MIB}.\n  Leave it out: then it follows from the links."
        )
    planned_rows = notes.get("global_batch", global_rows)
    if planned_rows != global_rows:
        log.info(
            "deploy",
            f"{path} was made for {planned_rows} rows of all ranks together, this job begins with "
            f"{global_rows}: time and memory will differ from what it predicts",
        )
    return text


def bucket_bytes(plan, devices) -> int:
    """In which gradients are summed over the replicas, equal on all ranks.

    A plan from a file brings it along: what is added to what first, and so the last bit of a sum
    over three ranks or more, depends on it.
    """
    notes = json.loads(plan.notes or "{}")
    return notes.get("bucket_bytes") or _C.partition.bucket_bytes(plan, devices)
