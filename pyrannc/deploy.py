"""The sequence of phases behind the first call, readable from top to bottom.

capture -> agree -> self-check -> profile -> plan on rank 0 -> broadcast -> run.
"""

import contextlib
import functools
import json
import os
from pathlib import Path

import torch

from pyrannc import _C, calibrate, check, files, log, optim, profile, schedules, state, step_costs
from pyrannc.errors import ConfigError, InfeasibleError, PlanError, RaNNCError, TraceError
from pyrannc.not_returned import NotReturned
from pyrannc.step import PipelineStep
from pyrannc.steps import Steps
from pyrannc.turns import Turns

GIB = 2**30


def deploy(
    model, optimizer, captured, call, config, world, load_path, outputs, outside_loss="mean"
):
    """Everything that happens once: from a captured model to a :class:`Deployment`.

    Collective. What one rank finds wrong while it checks and plans is raised on every rank.
    """
    args, kwargs = call
    local_rows = same_graph(captured, captured.batch_size(args, kwargs), world)
    parameters = state.tensors(model)
    if config.sync_params_on_init and world.size > 1:
        for tensor in {id(tensor): tensor for tensor in parameters.values()}.values():
            state.broadcast(world, tensor, 0, list(range(world.size)))
    hosts = [item.decode() for item in world.all_gather(world.host.encode())]
    memory = memory_bytes(config, hosts.count(world.host))

    fullest = local_rows.index(max(local_rows))  # other ranks may have no rows to check with
    checked = on_rank(fullest, world, lambda: self_check(model, captured, call, config, memory))
    mixing = mixing_reason(captured, **json.loads(checked))
    if not mixing and world.rank == 0:
        warn_of_averages(captured.graph)

    path = load_path or (config.deployment_file if config.load_deployment else None)
    predicted = None
    if path:
        plan_json = on_rank(
            0, world, lambda: read_plan(path, captured.graph, sum(local_rows), world.size)
        )
    else:
        wanted = schedules.request(captured, model.training, config, mixing)
        table, traced = profile.profile(
            captured.graph, captured.objects, world, max(local_rows), config.profile_cache
        )
        costs = step_costs.measure(captured.graph, parameters, optimizer, world)
        devices = cluster(hosts, memory, _C.comm.measure_links(world))
        predicted = step_costs.Step(costs, traced.storages, local_rows, outputs)
        plan_json = on_rank(
            0,
            world,
            lambda: make_plan(
                captured.graph,
                table,
                optimizer_bytes(captured.graph, parameters, optimizer, config),
                devices,
                request(sum(local_rows), config, mixing, wanted),
                config,
                mixing,
                predicted,
            ),
        )
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
        model, optimizer, captured, plan, local_rows, config, world, outputs, outside_loss
    )
    if predicted is not None and config.calibrate and torch.is_grad_enabled() and model.training:
        measured = deployment.calibrate(captured.flatten(args, kwargs))
        if measured:
            deployment.plan = plan = _C.plan.Plan.from_json(
                on_rank(0, world, lambda: predicted.calibrated(plan, measured))
            )
    if world.rank == 0:
        if log_enabled("info"):
            print_plan(plan)
        if config.save_deployment:
            save_plan(deployment, config.deployment_file)
    return deployment


def same_graph(captured, rows, world):
    """Checks that every rank captured the same graph. Returns ``rows`` of every rank."""
    mine = json.dumps(
        {
            "rows": rows,
            "fingerprint": captured.whole.fingerprint(),
            "with": "with" if torch.is_grad_enabled() else "without",
        }
    )
    all_ranks = [json.loads(item) for item in world.all_gather(mine.encode())]
    if len({item["fingerprint"] for item in all_ranks}) > 1:
        reference = _C.ir.Graph.from_json(
            world.broadcast(captured.whole.to_json().encode(), 0).decode()
        )
        difference = _C.ir.first_difference(reference, captured.whole)
        differs = [json.loads(item) for item in world.all_gather(json.dumps(difference).encode())]
        rank = next(rank for rank, text in enumerate(differs) if text)
        raise TraceError(f"rank {rank} captured another graph than rank 0: {differs[rank]}")
    if len({item["with"] for item in all_ranks}) > 1:
        calls = ", ".join(f"rank {rank} {item['with']}" for rank, item in enumerate(all_ranks))
        raise RaNNCError(f"the ranks make the first call with and without grad: {calls}")
    counts = [item["rows"] for item in all_ranks]
    if not any(counts):
        raise PlanError("the batch has no rows on any rank, so there is nothing to plan for")
    return counts


def on_rank(root, world, work) -> str:
    """``work()`` of one rank on every rank; its error is raised on every rank."""
    message = b""
    if world.rank == root:
        try:
            message = json.dumps({"result": work()}).encode()
        except RaNNCError as error:
            message = json.dumps({"error": type(error).__name__, "text": str(error)}).encode()
    answer = json.loads(world.broadcast(message, root).decode())
    if "error" in answer:
        raise getattr(_C.util, answer["error"])(answer["text"])
    return answer["result"]


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


def request(global_rows, config, mixing, wanted_schedules) -> str:
    """The planner's request, as JSON, from the settings."""
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


def make_plan(graph, table, state_bytes, devices, wanted, config, mixing, step) -> str:
    """The planner's answer for this job, as JSON."""
    folded = _C.cost.fold(graph, table, state_bytes)
    plan = _C.partition.make_plan(
        folded,
        devices,
        _C.partition.Request.from_json(wanted),
        max_blocks=config.max_partition_num,
        one_replica=bool(mixing),
    )
    if not plan.feasible:
        raise InfeasibleError(plan.reason)
    plan = _C.plan.with_summary(plan, graph, json.loads(wanted)["global_batch"])
    content = json.loads(plan.to_json())
    content.setdefault("notes", {}).update(
        fingerprint=graph.fingerprint(),
        global_batch=json.loads(wanted)["global_batch"],
        world=devices.hosts * devices.devices_per_host,
        memory_limit_bytes=int(devices.device_memory_bytes),
        **step.predict(plan, graph, folded, devices),
    )
    return json.dumps(content)


def read_plan(path, graph, global_rows, world_size) -> str:
    """A plan from a file, after a look at whether it was made for this job."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"load_deployment: {error}") from None
    plan = _C.plan.Plan.from_json(text)
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
    planned_rows = notes.get("global_batch", global_rows)
    if planned_rows != global_rows:
        log.info(
            "deploy",
            f"{path} was made for {planned_rows} rows of all ranks together, this job begins with "
            f"{global_rows}: time and memory will differ from what it predicts",
        )
    return text


def save_plan(deployment, path) -> None:
    """Writes the plan on rank 0; a file that is there is replaced as a whole."""
    if deployment.world.rank == 0:
        content = json.dumps(json.loads(deployment.plan.to_json()), indent=1)
        files.write_whole(path, content + "\n")


def log_enabled(level: str) -> bool:
    return _C.util.log_enabled(getattr(_C.util.Level, level), "deploy")


def print_plan(plan) -> None:
    log.info("deploy", "the plan\n" + _C.plan.show(plan))


def draw_steps(world):
    """Of random numbers that do not depend on the plan: the seed of rank 0's generator, and step 0.

    Collective.
    """
    seed = world.broadcast(str(torch.initial_seed()).encode(), 0).decode()
    return _C.runtime.DrawSteps(int(seed) % 2**64)


class Deployment:
    """A plan at work: who holds which tensors, and one :class:`Run` for each capture."""

    def __init__(
        self,
        model,
        optimizer,
        captured,
        plan,
        local_rows,
        config,
        world,
        outputs,
        outside_loss="mean",
    ):
        self.model, self.plan, self.world = model, plan, world
        self.local_rows = local_rows  # of the first call
        self._planned_rows = json.loads(plan.notes or "{}").get("global_batch", sum(local_rows))
        self._noted = set()
        self.turns = Turns(world)
        self._outputs = outputs
        self._config = config
        self._outside_loss = outside_loss
        self._planned = captured
        self.draws = draw_steps(world) if config.deterministic_dropout else None
        self.gate = torch.zeros((), requires_grad=True)  # see PipelineStep
        self.steps = Steps(self, optimizer)
        self.owners = state.Owners(world, model)
        executor = self._executor(captured, plan)
        self.owners.assign({*executor.parameter_names, *executor.buffer_names})
        if optimizer is not None:
            held = {id(p) for p in model.parameters() if not p.is_meta}
            optim.keep_local(optimizer, held)
        self.first = Run(self, captured, executor)

    def calibrate(self, inputs) -> dict:
        """What the plan's actions take on ``inputs``; empty for a model that does not train."""
        program = _C.plan.lower(
            self.plan, self._planned.graph, self.local_rows, True, self._outputs
        )
        return self.first.calibrate(inputs, program)

    def run_of(self, captured):
        """The run of another capture of the model: its nodes go to the stages of the plan."""
        same_graph(captured, 1, self.world)
        plan = _C.plan.map_to(self.plan, self._planned.graph, captured.graph)
        executor = self._executor(captured, plan)
        self.owners.fetch({*executor.parameter_names, *executor.buffer_names})
        return Run(self, captured, executor)

    def note_batch(self, local_rows):
        """Says once that a batch is larger than planned, and once that one is of another size."""
        rows = sum(local_rows)
        if self.world.rank != 0:
            return
        if rows > self._planned_rows and "larger" not in self._noted:
            self._noted.add("larger")
            log.warn(
                "deploy",
                f"a batch has {rows} rows on all ranks together, but the plan was made for "
                f"{self._planned_rows}: it may not fit in memory. Make the first batch the largest",
            )
        elif rows < self._planned_rows and "smaller" not in self._noted:
            self._noted.add("smaller")
            log.info(
                "deploy",
                f"a batch has {rows} rows on all ranks together, the plan was made for "
                f"{self._planned_rows} and stays",
            )

    @contextlib.contextmanager
    def backward(self, number):
        """Around the backward of forward pass ``number``, where that communicates."""
        self.turns.backward(number)
        with self.steps.backward():
            yield

    def _executor(self, captured, plan):
        return _C.runtime.Executor(
            captured.graph,
            captured.objects,
            plan,
            self.world,
            preludes=captured.preludes,
            outside_sum=self._outside_loss == "sum",
            outputs=self._outputs,
            draws=self.draws,
        )

    def clip_grad_norm(self, max_norm: float) -> float:
        """Each parameter counts once over all ranks, however many hold it."""
        with torch.no_grad():
            held = [
                (parameter.grad, len(self.owners.ranks[name]))
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None
            ]
            squares = sum(
                (gradient.double().square().sum() / holders for gradient, holders in held),
                start=torch.zeros((), dtype=torch.float64),
            ).reshape(1)
            self.world.all_reduce_sum(squares.numpy(), list(range(self.world.size)))
            norm = squares.sqrt().item()
            scale = max_norm / (norm + 1e-6)
            if scale < 1:
                for gradient, _ in held:
                    gradient.mul_(scale)
        return norm


class Run:
    """One capture of the model with its executor."""

    def __init__(self, deployment, captured, executor):
        self.capture, self.executor, self._deployment = captured, executor, deployment
        tensors = state.tensors(deployment.model)
        self._parameters = [tensors[name] for name in executor.parameter_names]
        self._buffers = [tensors[name] for name in executor.buffer_names]
        graph = captured.graph
        self._differentiable = [graph.values[value].requires_grad for value in graph.outputs]
        self._trains = any(value.requires_grad for value in graph.values)
        plan, training = deployment.plan, deployment.model.training
        if training and not schedules.can_train(plan, graph):
            raise PlanError(
                f"the plan has schedule '{plan.schedule}', but this call, unlike the first one, "
                "returns no loss to start the backward from: return it, or call eval() first"
            )
        # Its graph may have no loss, and every output is wanted.
        self._forward_only = _C.plan.backward_comes_first(plan) and not training
        self._not_returned = [NotReturned(path, plan.schedule) for path in captured.output_paths()]

    def calibrate(self, inputs, program) -> dict:
        if not self._trains:
            return {}
        wanted = self._differentiable
        if _C.plan.backward_comes_first(self._deployment.plan):  # from the loss only
            values = self.capture.graph.values
            scalar = [not values[value].dims for value in self.capture.graph.outputs]
            wanted = [pair == (True, True) for pair in zip(wanted, scalar, strict=True)]
        return calibrate.measure(
            self.executor,
            ([tensor.detach() for tensor in inputs], self._parameters, self._buffers),
            wanted,
            program,
            self._deployment.local_rows,
            self._deployment.world,
        )

    def step(self, inputs, turn):
        """Runs forward (and, from the user's ``backward``, the rest); returns the outputs."""
        deployment = self._deployment
        as_planned = self is deployment.first and turn.local_rows == deployment.local_rows
        tracked = self._trains and torch.is_grad_enabled()
        with_backward = tracked and not self._forward_only
        with deployment.steps.forward(with_backward, as_planned):
            call = self.executor.forward(
                [tensor.detach() for tensor in inputs],
                [
                    parameter.detach() if not with_backward else parameter
                    for parameter in self._parameters
                ],
                self._buffers,
                turn.local_rows,
                with_backward,
            )
        if not tracked:
            return list(call.outputs)
        if self._deployment.draws is not None:
            self._deployment.draws.step += 1
        outputs = PipelineStep.apply(
            call,
            self._backward_of(turn),
            self._differentiable,
            deployment.gate,
            *self._parameters,
            *inputs,
        )
        return [
            place if output is None else output
            for output, place in zip(outputs, self._not_returned, strict=True)
        ]

    def _backward_of(self, turn):
        deployment = self._deployment
        if _C.plan.backward_comes_first(deployment.plan):
            return deployment.steps.backward
        return functools.partial(deployment.backward, turn.number)
