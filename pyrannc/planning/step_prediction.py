"""What a training step takes and holds under any plan of one job."""

import dataclasses
import json

from pyrannc import _C
from pyrannc.profiling.step_costs import Costs

COMPUTING = ("forward", "backward")


@dataclasses.dataclass
class StepPrediction:
    """What it takes to predict a training step under any plan of one job."""

    costs: Costs
    storages: list  # profile.Traced.storages
    local_rows: list
    outputs: object  # _C.plan.Outputs

    def predict(self, plan, graph, folded, devices) -> dict:
        """For the notes of ``plan``: time of a step, the largest memory of each stage's ranks, and
        the size of the buckets that both are meant for.

        Unlike ``iteration_ns`` and ``peak_bytes``, which any evaluator of planner files computes,
        they know this host, the optimizer, and when within a step what is held.
        """
        self._job = (graph, folded, devices)
        program = _C.plan.lower(plan, graph, self.local_rows, True, self.outputs)
        bucket_bytes = _C.predict.bucket_bytes(plan, devices)
        return {
            **self._time(plan, program, {}, self.costs.time),
            "bucket_bytes": bucket_bytes,
            "step_peak_bytes": self._peak_bytes(plan, program, graph, folded, bucket_bytes),
        }

    def peak_bytes(self, plan, graph, folded, devices) -> int:
        """On the fullest rank, as predict() says it."""
        program = _C.plan.lower(plan, graph, self.local_rows, True, self.outputs)
        bucket_bytes = _C.predict.bucket_bytes(plan, devices)
        return max(self._peak_bytes(plan, program, graph, folded, bucket_bytes))

    def _peak_bytes(self, plan, program, graph, folded, bucket_bytes):
        peaks = _C.predict.step_peak_bytes(
            program,
            plan,
            graph,
            folded,
            self.storages,
            **self.costs.memory,
            bucket_bytes=bucket_bytes,
        )
        return [round(peak) for peak in peaks]

    def calibrated(self, plan, measured, tried_notes) -> str:
        """``plan``, which predict() has seen, with the time that follows from ``measured``, what
        measured_runs.measure() returns; as JSON.

        ``tried_notes``: what else was tried.
        """
        program = _C.plan.lower(plan, self._job[0], self.local_rows, True, self.outputs)
        content = json.loads(plan.to_json())
        notes = content["notes"]
        notes["step_from_operators_ns"] = notes["step_ns"]
        tried, whole = (self._measured(measured, scale) for scale in (False, True))
        # The optimizer's time is in `around_ns`.
        costs = {**self.costs.time, "optimizer_ns": []}
        notes.update(self._time(plan, program, whole, costs))
        # Switching between threads, polling, late wake-ups: what the runs took beyond what follows
        # from their parts.
        beyond = measured["run_ns"] - self._step(plan, program, tried, costs).ns
        notes["step_ns"] = max(round(notes["step_ns"] + beyond), 0)
        notes.update(tried_notes)
        self._calibrated = (plan, program, whole, costs, beyond)
        return json.dumps(content)

    def at_speed(self, factors) -> dict:
        """Notes of the plan that was calibrated last, for ranks that compute ``factors`` times as
        long: time of a step, and what each rank waits."""
        plan, program, measured, costs, beyond = self._calibrated
        actions = {
            "measured": [
                [
                    (ns * factor if kind in COMPUTING else ns, wait)
                    for kind, (ns, wait) in zip(kinds, rank, strict=True)
                ]
                for kinds, rank, factor in zip(
                    _kinds(program), measured["measured"], factors, strict=True
                )
            ],
            "around_ns": [
                ns * factor for ns, factor in zip(measured["around_ns"], factors, strict=True)
            ],
        }
        step = self._step(plan, program, actions, costs)
        return {
            "step_ns": max(round(step.ns + beyond), 0),
            "step_idle_ns": [round(idle) for idle in step.idle_ns],
        }

    @staticmethod
    def _measured(measured, scale):
        """Arguments of StepCosts; ``scale``: with the whole step of the optimizer, of which a part
        was tried."""
        return {
            "measured": measured["measured"],
            "around_ns": [
                around + tried * (factor if scale else 1)
                for around, tried, factor in zip(
                    measured["around_ns"],
                    measured["optimizer_ns"],
                    measured["optimizer_factor"],
                    strict=True,
                )
            ],
        }

    def _step(self, plan, program, actions, costs, cluster=None):
        graph, folded, devices = self._job
        return _C.predict.step_time(
            program,
            plan,
            graph,
            folded,
            cluster or devices,
            _C.predict.StepCosts(**costs, **actions),
        )

    def _time(self, plan, program, measured, costs):
        _, _, devices = self._job
        step = self._step(plan, program, measured, costs)
        # Were messages free, a rank would still wait for others to compute.
        link = _C.cost.Link(bandwidth_bytes_per_s=1e18, latency_ns=0.0)
        free = _C.cost.Cluster(
            hosts=devices.hosts,
            devices_per_host=devices.devices_per_host,
            device_memory_bytes=devices.device_memory_bytes,
            intra_host=link,
            inter_host=link,
        )
        return {
            "step_ns": round(step.ns),
            "step_idle_ns": [round(idle) for idle in step.idle_ns],
            "step_bubble_ns": [
                round(idle)
                for idle in self._step(
                    plan, program, _computations(program, measured), costs, free
                ).idle_ns
            ],
        }


def _computations(program, measured):
    """``measured`` without what communication takes."""
    if not measured:
        return {}
    return {
        **measured,
        "measured": [
            [
                action if kind in COMPUTING else (0.0, 0.0)
                for kind, action in zip(*rank, strict=True)
            ]
            for rank in zip(_kinds(program), measured["measured"], strict=True)
        ],
    }


def _kinds(program):
    """Of the actions of each rank."""
    return [[action[0] for action in rank] for rank in json.loads(program.to_json())["actions"]]
