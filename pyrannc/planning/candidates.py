"""The plans of one job: the best one, and others that may be worth a run beside it."""

import collections
import dataclasses
import functools
import json
import time

from pyrannc import _C, log
from pyrannc.errors import InfeasibleError, PlanError
from pyrannc.planning import tight_memory

#: A plan of another shape that is slower by more than this share, by its operators, is not worth a
#: run.
#: tuned by: `rannc run -n 2 benchmarks/runtime/peers.py --model head_heavy` with limited memory:
#: two stages took 16 % less than six, and 4 % more by their operators.
#: without it: the limited GPT with a heavy head trains in 2,690 ms instead of 2,250.
SLOWER_BY = 0.25

#: Plans of other shapes that run before the first step, and seconds to find them, after which no
#: other is searched for.
#: tuned by: no measurement is known.
#: without it: the first step waits longer for plans that are further behind.
MOST_SHAPES, MOST_PLANNING_S = 3, 2.0


@dataclasses.dataclass
class Planner:
    """Makes the plans of one job, on rank 0.

    Attributes:
        graph: ``_C.ir.Graph``.
        table: ``_C.cost.CostTable``.
        state_bytes: What :func:`planning.optimizer_bytes` found.
        devices: What :func:`planning.cluster` made.
        wanted: What :func:`planning.request` made.
        most_blocks: Of the search; 0: by the cluster.
        mixing: Why rows cannot be told apart, or nothing.
        step: ``step_prediction.StepPrediction``.
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
        plan = self._search(self.wanted)
        try:
            content = self._completed(plan) if plan.feasible else None
        except PlanError:  # such as a share in which there is nothing to normalise
            if not self._drop_micro_batches(plan.micro_batches):
                raise
            return self.plan()
        if content is None or tight_memory.is_tight(content, self._limit):
            content = self._with_room(content, self.wanted)
        if content is None:
            raise InfeasibleError(plan.reason)
        return json.dumps(content)

    def _drop_micro_batches(self, count) -> bool:
        """No plan has ``count`` micro-batches or more from now on; False where none is left."""
        wanted = json.loads(self.wanted)
        wanted["micro_batches"] = [fewer for fewer in wanted["micro_batches"] if fewer < count]
        self.wanted = json.dumps(wanted)
        return bool(wanted["micro_batches"])

    def _search(self, wanted, **options):
        return _C.partition.make_plan(
            self._accumulating,
            self.devices,
            _C.partition.Request.from_json(wanted),
            **options,
            max_blocks=self.most_blocks,
            one_replica=bool(self.mixing),
        )

    def _with_room(self, planned, wanted, found=None):
        """The content of the fastest plan for the request ``wanted`` that fits by what a step
        holds; ``planned``, the content of one or None, where none is faster.

        ``found``: the plan with the notes of the search; by default of the one that this needs.
        """
        roomy = self._search(wanted, room=tight_memory.MOST, exactly=False)
        if not roomy.feasible:
            return planned
        content = json.loads(roomy.to_json())
        shapes = {shape(other): other for other in content["notes"]["alternatives"]}
        replicas = [len(stage["ranks"]) for stage in content["stages"]]
        shapes[shape(content)] = {**content, "replicas": replicas}
        fitting = planned if planned and tight_memory.fits(planned, self._limit) else None
        best = tight_memory.fastest(
            fitting,
            shapes.values(),
            lambda other, in_step: self._of_shape(found or roomy, other, wanted, in_step),
            self._limit,
        )
        return best or planned

    def with_micro_batches(self, plan, count) -> str:
        """What plan() would have returned, had the search found ``plan``, which plan() returned,
        with ``count`` micro-batches; empty where that is not possible or does not fit."""
        changed = _C.partition.with_micro_batches(
            self._accumulating,
            self.devices,
            _C.partition.Request.from_json(self.wanted),
            plan,
            count,
            tight_memory.MOST,
        )
        if not changed.feasible:
            return ""
        try:
            content = self._completed(changed)
        except PlanError:  # such as a share in which there is nothing to normalise
            return ""
        return json.dumps(content) if tight_memory.fits(content, self._limit) else ""

    def of_other_shapes(self, plan) -> list[str]:
        """Plans of other shapes (stages, their replicas, schedule) that may be worth a run beside
        ``plan``, which plan() returned: the best of each, the fastest by operators first.

        Every rank has the whole model until one of them is taken, so there are none where that is
        too much for a run of ``plan``.
        """
        content = json.loads(plan.to_json())
        if not self._fits_beside_model(content):
            return []
        found, end = [], time.monotonic() + MOST_PLANNING_S
        shapes = {shape(content)}
        fewer = (
            self._fewer_micro_batches(plan) if tight_memory.is_tight(content, self._limit) else None
        )
        if fewer:
            found.append(json.dumps(fewer))
            shapes.add(shape(fewer))
        for other in content["notes"]["alternatives"]:
            if shape(other) in shapes:
                continue
            if other["iteration_ns"] > (1 + SLOWER_BY) * plan.iteration_ns:
                break
            if len(found) == MOST_SHAPES or time.monotonic() > end:
                break
            shapes.add(shape(other))
            best = self._best_of_shape(plan, other, end)
            if best:
                found.append(json.dumps(best))
        return found

    def _fewer_micro_batches(self, plan):
        """Content of the best plan with fewer micro-batches than ``plan``, which may have so many
        because memory demands it, for a run beside it; None where there is none."""
        wanted = json.loads(self.wanted)
        wanted["micro_batches"] = [
            count for count in wanted["micro_batches"] if count < plan.micro_batches
        ]
        if not wanted["micro_batches"]:
            return None
        found = self._with_room(None, json.dumps(wanted), plan)
        return found if found and self._fits_beside_model(found) else None

    def _best_of_shape(self, plan, other, end):
        """Content of the best plan of the shape of ``other`` that fits, for a run beside ``plan``;
        None where none was found until ``end``."""
        wanted = json.loads(self.wanted)
        replicas = [len(stage.ranks) for stage in plan.stages]
        least = min(2, self._fewest_rows(replicas, plan.micro_batches))
        wanted["micro_batches"] = [
            count
            for count in wanted["micro_batches"]
            if self._fewest_rows(other["replicas"], count) >= least
        ]
        if not wanted["micro_batches"]:
            return None
        layout = "+".join(map(str, other["replicas"]))
        log.info(
            "deploy", f"a plan with replicas {layout}, schedule {other['schedule']}, to run it, too"
        )
        wanted = json.dumps(wanted)
        found = tight_memory.of_shape(
            other,
            lambda other, in_step: self._of_shape(plan, other, wanted, in_step),
            self._limit,
            end=end,
        )
        return found if found and self._fits_beside_model(found) else None

    def _of_shape(self, plan, other, wanted, in_step):
        """Content of the best plan of the shape of ``other`` where ``in_step`` of the memory is for
        what a step holds; None where there is none."""
        try:
            planned = _C.partition.plan_of_shape(
                self._accumulating,
                self.devices,
                _C.partition.Request.from_json(wanted),
                plan,
                replicas=other["replicas"],
                schedule=other["schedule"],
                interleave=other["interleave"],
                room=tight_memory.MOST,
                in_step=in_step,
                step_bytes=self._step_bytes,
                step_limit_bytes=tight_memory.TRUSTED * self._limit,
                exactly=False,
                max_blocks=self.most_blocks,
                one_replica=bool(self.mixing),
            )
            return self._completed(planned) if planned.feasible else None
        except PlanError:
            return None

    def _step_bytes(self, plan):
        return self.step.peak_bytes(plan, self.graph, self._folded, self.devices)

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
