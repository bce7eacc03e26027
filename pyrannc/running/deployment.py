"""A plan at work on this rank, and the runs of its captures."""

import contextlib
import dataclasses

import torch

from pyrannc import _C, live_deployments, log
from pyrannc.errors import ConfigError, RaNNCError
from pyrannc.job import transport
from pyrannc.job.agreement import same_graph
from pyrannc.loop.written_copies import GivenCopies
from pyrannc.optimizer import around_another, user_optimizer
from pyrannc.optimizer.state import named_state, param_names, shard_layout
from pyrannc.optimizer.step.count import OptimizerSteps
from pyrannc.optimizer.step.late import LateOptimizers
from pyrannc.optimizer.step.shards import ShardedSteps
from pyrannc.original import switches
from pyrannc.planning import schedules
from pyrannc.ranks import gathered, on_all
from pyrannc.report import time_shares
from pyrannc.report.operator_values import OperatorValues
from pyrannc.report.training_steps import TrainingSteps
from pyrannc.running import shared_memory
from pyrannc.running.alike.call_agreement import CallAgreement
from pyrannc.running.audits import Audits
from pyrannc.running.no_sync import UnsummedGradients
from pyrannc.running.run import Run
from pyrannc.state import draw_steps, moving, named_tensors, owners, tensor_parts
from pyrannc.state.released import is_released
from pyrannc.trial import measured_runs


class Deployment:
    """A plan at work: who holds which tensors, and one :class:`Run` for each capture.

    Args:
        task: :class:`~pyrannc.running.task.Task`.
        local_rows: Of all ranks in the first call.
        plan: ``_C.plan.Plan``.
        bucket_bytes: In which gradients are summed over the replicas.
    """

    def __init__(self, task, local_rows, plan, bucket_bytes):
        self.task, self.model, self.world = task, task.model, task.world
        self.local_rows = local_rows
        places = task.config.tensor_parallel
        first = self.world.rank // places * places
        #: The ranks that compute layers together, this one among them.
        self.group = tuple(range(first, first + places))
        self._planned_rows = plan.made_for.global_batch or sum(local_rows)
        self._noted = set()
        self.comm = transport.of_messages(self.world, task.device, task.config)
        self.audits = Audits(self.world, task.config.audit)
        self.has_generated_whole = False  # the model on each rank, as generate() then says once
        self.connected_bytes = 0  # of the device's memory, what NCCL has taken for the plans' ranks
        self._ends = []
        self.holds = False  # this rank's part of the model; before hold() all of it
        self.dropout = True  # see RaNNCModule.enable_dropout
        self.whole_groups = {}  # by optimizer, before it is cut down
        self.unsummed = UnsummedGradients(self)
        self.owners = owners.Owners(self.world, self.model)
        self.optimizer_steps = OptimizerSteps(self)
        self.late_optimizers = LateOptimizers(self)
        self.given_copies = GivenCopies()
        self.sharded_steps = None  # see share_state()
        self._shards = None  # names of the parameters of each bucket that has shards
        self.call_agreement = CallAgreement(
            self.world,
            self.unsummed.kept,
            self.optimizer_steps,
            self.owners.peers,
            self.owners.held,
            task.device,
            self.owners.questions.meet,
        )
        self.owners.questions.agree = self.call_agreement.asking
        self.number = self.call_agreement.model  # the same on every rank
        live_deployments.add(self)
        self._bucket_bytes = bucket_bytes
        self.draws = draw_steps.begin(self.world, self.model) if task.config.draws_by_key else None
        self.steps = TrainingSteps(self)
        self.process_bytes = [None] * len(plan.stages)  # what report.resident_memory predicts
        self.speed = None  # report.Speed, of a plan that try_plans() has measured
        self.first = None
        self._take(plan)

    def replan(self, plan) -> None:
        """Before the first step: takes ``plan``; after hold() its stages and ranks must be those of
        the plan at work."""
        self._bucket_bytes = plan.bucket_bytes
        self._take(plan)

    def _take(self, plan):
        executor = self.executor(self.task.captured, plan)
        self.plan = plan
        self.first = Run(self, self.task.captured, executor, plan)

    def hold(self) -> None:
        """From here on every rank holds, and its optimizer steps, what its stages use; the rest of
        the model is freed. Collective, once, before the first step."""
        self.holds = True
        executor = self.first.executor
        used = {*executor.parameter_names, *executor.buffer_names}
        shared = self._sharing_memory() if self.world.size > 1 else []
        self.owners.assign(used, shared)
        places = self._places()
        if self.task.value_source is None:
            for tensor, place in places.values():
                self._cut(tensor, place)
        self._note_groups()
        elsewhere = {id(p) for p in self.model.parameters() if is_released(p)}
        for optimizer in self.task.all_optimizers:
            user_optimizer.leave_out(optimizer, elsewhere)
        if self.task.value_source is not None:
            self._give_values(places)
        if self.first is not None:
            self.first.forget_tensors()
        self._move_to(self.task.device, self.task.all_optimizers)

    def _places(self) -> dict:
        """By id: tensors of which each rank of a group, or each replica, keeps a part, and where it
        lies."""
        in_groups = len(self.group) > 1
        shared = {name: sorted(s.ranks) for s in self.plan.stages for name in s.shared}
        if not in_groups and not shared:
            return {}
        mine = {part.name: (part.dim, part.stretches) for part in self.first.executor.parts}
        everyones = gathered(self.world, mine)
        held = named_tensors.tensors(self.model)
        size = len(self.group)
        for first in range(0, self.world.size if in_groups else 0, size):  # all cut it alike
            of_group = everyones[first : first + size]
            for name, (dim, _) in of_group[0].items():
                self.owners.cut(name, dim, [each[name][1] for each in of_group])
        for name, ranks in shared.items():
            self.owners.cut(name, 0, [everyones[rank][name][1] for rank in ranks], ranks)
        found = {}
        for name, (dim, _) in mine.items():
            ranks = tuple(shared.get(name, self.group))
            stretches = tuple(everyones[rank][name][1] for rank in ranks)
            tensor = held[name]
            what = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
            found[id(tensor)] = (
                tensor,
                tensor_parts.Place(name, tensor.shape, dim, stretches, ranks, self.world, what),
            )
        return found

    def _cut(self, tensor, place):
        tensor_parts.cut(tensor, place)
        for optimizer in self.task.all_optimizers:
            tensor_parts.cut_state(optimizer, tensor, place)

    def _note_groups(self):
        """Of the optimizers, also those that were added lately; before parameters leave them."""
        for optimizer in self.task.optimizers:
            named_state.note_groups(optimizer)
            known = self.whole_groups.setdefault(optimizer, [])
            known += [[*group["params"]] for group in optimizer.param_groups[len(known) :]]

    @contextlib.contextmanager
    def with_whole_groups(self):
        """Inside, the groups of the optimizers have what they had before they were cut down."""
        cut = []
        for optimizer, groups in self.whole_groups.items():
            for group, whole in zip(optimizer.param_groups, groups, strict=False):
                cut.append((optimizer, group, group["params"]))
                param_names.replace(optimizer, group, whole)
        try:
            yield
        finally:
            for optimizer, group, parameters in reversed(cut):
                param_names.replace(optimizer, group, parameters)

    def _give_values(self, places):
        """What this rank holds of a model that was built without values. Of ``places`` it keeps its
        part, one tensor after the other."""
        held = named_tensors.tensors(self.model)
        mine = [name for name, tensor in held.items() if not is_released(tensor)]

        def given(tensor):
            if id(tensor) in places:
                self._cut(*places.pop(id(tensor)))

        on_all(self.world, lambda: self.task.value_source.give(mine, given))
        for tensor, place in places.values():  # that had values
            self._cut(tensor, place)
        parts = tensor_parts.as_tensors(held.values())
        for optimizer in self.task.optimizers:
            on_all(self.world, lambda each=optimizer: user_optimizer.begin_again(each))
        tensor_parts.as_parts(parts)
        if self.task.value_source.then is not None:
            on_all(self.world, self.task.value_source.then)

    def share_state(self) -> None:
        """After hold(), with the plan that stays: the replicas of each stage share the state of the
        optimizers, where the user wants it. Collective."""
        if not self.plan.shard_optimizer:
            return
        graph, rows, outputs = self.task.captured.graph, self.local_rows, self.task.outputs
        buckets = []
        # Without a loss there is no training step under some schedules, and nothing to share.
        if not _C.plan.backward_comes_first(self.plan) or _C.plan.loss_of(graph) is not None:
            program = _C.plan.lower(
                self.plan, graph, rows, True, outputs, bucket_bytes=self._bucket_bytes
            )
            places = len(self.group)
            buckets = shard_layout.find(self.model, graph, program, self.owners, places)
        if not buckets:
            if self.world.rank == 0 and not any(stage.shared for stage in self.plan.stages):
                log.info("deploy", "zero: no stage that trains has replicas to share its state")
            return
        parameters = dict(self.model.named_parameters())
        for bucket in buckets:
            number_bytes = parameters[bucket.names[0]].element_size()
            whole = bucket.share * len(bucket.ranks) * number_bytes
            device = str(self.task.device)
            _C.runtime.connect_shards(self.comm, device, list(bucket.ranks), [whole])
        shards = shard_layout.Shards(self.model, buckets, self.owners, self.world.rank)
        self.sharded_steps = ShardedSteps(self, shards)
        for optimizer in self.task.optimizers:
            self.sharded_steps.attach(optimizer)
        self._shards = [
            [graph.values[value].name for value in values] for values, _ in program.buckets
        ]
        self._take(self.plan)

    def optimizer_share(self) -> float:
        """The part of the optimizer's step of its parameters that this rank takes."""
        mine = [stage for stage in self.plan.stages if self.world.rank in stage.ranks]
        shared = mine and self.plan.shard_optimizer
        return mine[0].places / len(mine[0].ranks) if shared else 1.0

    def _move_to(self, device, optimizers):
        """What this rank holds of the model, and the state that ``optimizers`` have of it."""
        if self.task.device == self.task.home:
            return
        moving.to_device(self.model, device)
        for optimizer in optimizers:
            moving.state_to_parameters(optimizer)
        if self.first is not None:
            self.first.forget_tensors()

    def of_copy(self, model, optimizers, source):
        """That of a copy of the model, on the same plan; ``source``: of its values. Collective."""
        hooks = self.task.hooks.of_copy(model)
        task = dataclasses.replace(
            self.task, model=model, optimizers=optimizers, hooks=hooks, value_source=source
        )
        made = Deployment(task, self.local_rows, self.plan, self._bucket_bytes)
        made.hold()
        made.share_state()
        return made

    def _sharing_memory(self):
        """Tensors of which the optimizer or forward() changes one and with it the other."""
        held = named_tensors.tensors(self.model)
        written = _C.ir.written_names(self.task.captured.graph)
        changing = {n: t for n, t in held.items() if t.requires_grad or n in written}
        used = set(map(id, self.task.captured.objects))
        constants = {
            f"{path}.{name}" if path else name: value
            for path, module in self.model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor) and id(value) in used
        }
        return shared_memory.pairs(changing, held | constants)

    def calibrate(self, inputs, patience=measured_runs.OF_FIRST_PLAN):
        """``_C.predict.MeasuredRuns`` of the plan's actions, and of a step of the optimizer, on
        ``inputs``; None for a model that does not train."""
        graph, outputs = self.task.captured.graph, self.task.outputs
        program = _C.plan.lower(self.plan, graph, self.local_rows, True, outputs)
        return self.first.calibrate(inputs, program, self.task.optimizers, patience)

    def run_of(self, captured):
        """The run of another capture of the model: its nodes go to the stages of the plan, where it
        is for one number of rows to one replica of each."""
        captured, _ = same_graph(captured, 1, self.world)
        plan = _C.plan.map_to(self.plan, self.task.captured.graph, captured.graph)
        if captured.alone:
            plan = _C.plan.on_one_replica(plan)
        elif self._takes_fill_drain(captured):
            plan = _C.plan.fill_drain(plan)
        plan = self._sharing(plan, captured)
        made = []
        on_all(self.world, lambda: made.append(self.executor(captured, plan)))
        executor = made[0]
        users = self.owners.users({*executor.parameter_names, *executor.buffer_names})
        self._note_groups()
        self.owners.move_unused(users, self._moving_in(self.task.optimizers))
        elsewhere = {
            name: ranks for name, ranks in users.items() if ranks != self.owners.ranks[name]
        }
        self._refuse_otherwise_shared(plan, users, elsewhere)
        if elsewhere:
            parameters = dict(self.model.named_parameters(remove_duplicate=False))
            holders = {name: self.owners.ranks[name] for name in elsewhere if name in parameters}
            executor = self.executor(captured, plan, holders)
        return Run(self, captured, executor, plan, elsewhere)

    def _sharing(self, plan, captured):
        """``plan`` with the parameters that the replicas of its stages share already."""
        shared = self.owners.shared()
        several = [len(stage.ranks) > 1 for stage in plan.stages]
        if not shared or not any(several):
            return plan
        others = [n for n, _ in self.model.named_parameters(remove_duplicate=False)]
        return _C.plan.share_parameters(
            plan, captured.graph, captured.preludes, [n for n in others if n not in shared]
        )

    def _refuse_otherwise_shared(self, plan, users, elsewhere):
        """Raises ConfigError where a call uses what replicas share in another way."""
        shared = {name for stage in plan.stages for name in stage.shared}
        for name in sorted(self.owners.shared() & users.keys()):
            tied = {n for n, t in named_tensors.tensors(self.model).items()
                    if t is named_tensors.tensors(self.model)[name]}  # fmt: skip
            if name in elsewhere or not tied & shared:
                raise ConfigError(
                    f"zero='parameters': replicas share '{name}', which this call, unlike the "
                    "first one, uses on other ranks, in several stages or whole. Leave zero out, "
                    "or set zero=True."
                )

    def _takes_fill_drain(self, captured) -> bool:
        """Whether a call, unlike the first one, trains and leaves its loss to the script."""
        trains = self.model.training and _C.ir.requires_grad(captured.graph)
        if not trains or not _C.plan.backward_comes_first(self.plan):
            return False
        if self.task.config.schedule != "auto" or self.task.outputs == _C.plan.Outputs.all:
            return False
        lacks_loss = not schedules.can_train(self.plan, captured.graph)
        return lacks_loss or bool(schedules.loss_outside(captured))

    def when_it_ends(self, forget) -> None:
        """Calls ``forget(reason)`` once the plan has ended."""
        self._ends.append(forget)

    def end(self, reason) -> None:
        """Lets go of the plan; ``reason``: why the model cannot be called any more, or empty."""
        self.tell_time()
        live_deployments.remove(self)
        for forget in self._ends:
            forget(reason)
        self.first = None

    def has_released(self, tensors) -> bool:
        """Whether some rank does not hold one of them; the same on every rank."""
        wanted, known = set(map(id, tensors)), named_tensors.tensors(self.model)
        return any(
            len(self.owners.ranks[name]) < self.world.size
            for name, tensor in known.items()
            if id(tensor) in wanted
        )

    def undeploy(self) -> None:
        """Ends the plan, and gives every rank all tensors of the model and all states of the
        optimizers, also of those that were made after the first call. Collective.

        Gradients are dropped. The model can be called again, which plans anew.
        """
        self.call_agreement.other("undeploy()")
        self.unsummed.check("undeploy()")
        if self.sharded_steps:
            self.sharded_steps.end()
        late = self.late_optimizers.of_all_ranks()
        optimizers = around_another.with_inner([*self.task.optimizers, *late])
        for tensor in {id(t): t for t in named_tensors.tensors(self.model).values()}.values():
            if tensor_parts.is_part(tensor):
                tensor_parts.join_for_good(tensor, optimizers)
        self._move_to(self.task.home, optimizers)  # where there is room for the whole
        self.owners.give_all(self._moving_in(optimizers))
        for optimizer, groups in self.whole_groups.items():
            for group, whole in zip(optimizer.param_groups, groups, strict=False):
                held, known = set(map(id, group["params"])), set(map(id, whole))
                later = [each for each in group["params"] if id(each) not in known]
                again = [each for each in whole if id(each) in held] + later
                param_names.replace(optimizer, group, again)
        for parameter in self.model.parameters():
            parameter.grad = None
        self.end("")

    def tell_time(self) -> None:
        """Logs where this rank's time went so far, once, where that is wanted."""
        if self.task.config.profiling and "time" not in self._noted:
            self._noted.add("time")
            log.warn("deploy", time_shares.in_words(self.steps))

    def _moving_in(self, optimizers):
        """What Owners calls for a tensor that goes from one rank to others."""

        def moved(tensor, root, ranks):
            if isinstance(tensor, torch.nn.Parameter):
                for optimizer in optimizers:
                    user_optimizer.move(optimizer, tensor, self.world, root, ranks)

        return moved

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

    def backward(self, call, turn, numbers, gradients, keep_graph, run):
        """Around ``run(keep_graph, given)``, the backward of a call of the executor;
        ``numbers``: see LossScales.add().

        ``gradients`` are those of the call's outputs.
        """
        if torch.is_grad_enabled():
            raise RaNNCError(
                "backward(create_graph=True) through a RaNNCModule is not possible: second "
                "derivatives would have to run the pipeline again"
            )
        keep_graph = keep_graph or switches.is_on("keep_graph")
        live_deployments.note_backward(self)
        self.call_agreement.scales.add(turn.number, numbers, gradients)
        communicates = call.communicates
        told = gradients[: _C.runtime.MOST_OUTPUTS]
        given = sum(1 << i for i, each in enumerate(told) if each is not None)
        if communicates:
            given = self.call_agreement.backward(turn.number, keep_graph, given)
        with self.steps.backward(), self.shown():
            run(keep_graph, given)
        self.owners.gradients.arrivals += not turn.no_sync
        if turn.delayed and not switches.is_on("delay_grad_allreduce"):
            self.call_agreement.other("a backward after delay_grad_allreduce(False)")
            self.unsummed.add_to_gradients()
        elif communicates and not turn.no_sync:
            self.unsummed.add_to_gradients()  # of parameters that this call does not have

    def shown(self):
        """Around what operators compute: logs their results where that is wanted."""
        if self.task.config.display_act_value:
            return OperatorValues()
        return contextlib.nullcontext()

    def executor(self, captured, plan, holders=None):
        """What runs ``captured`` under ``plan`` on this rank."""
        with transport.counting_memory(self.task.device) as taken:
            made = self._executor(captured, plan, holders)
        self.connected_bytes += sum(taken)
        return made

    def _executor(self, captured, plan, holders):
        return _C.runtime.Executor(
            captured.graph,
            captured.objects,
            plan,
            self.comm,
            device=str(self.task.device),
            preludes=captured.preludes,
            outside_sum=self.task.outside_loss == "sum",
            outputs=self.task.outputs,
            draws=self.draws,
            kept=self.unsummed.kept,
            bucket_bytes=self._bucket_bytes,
            holders=holders or {},
            show_values=self.task.config.display_comm_value,
            float32_sums=self.task.config.float32_sums,
            shards=self._shards,
            held=self.owners.parts() if self.holds and len(self.group) > 1 else {},
        )
