"""Before the first step: what the plan's actions take, and whether another plan is faster."""

import json

from pyrannc import _C
from pyrannc.job.agreement import on_rank
from pyrannc.planning import candidates
from pyrannc.report.speed import Speed
from pyrannc.trial import choose, measured_runs


def try_plans(deployment, planner, inputs) -> None:
    """Runs the plan, the best ones of other shapes, and the fastest of them with other numbers of
    micro-batches; what is the fastest stays, with the time that follows from its runs.

    Collective, for a deployment that does not hold() yet. Rank 0 has the ``planner``.
    """
    world, planned = deployment.world, deployment.plan

    def run(plan):
        deployment.replan(plan)
        return deployment.calibrate(inputs, measured_runs.OF_ANOTHER_PLAN)

    others = on_rank(0, world, lambda: planner.of_other_shapes(planned))
    if not others:  # then no rank has to have more than it needs
        deployment.hold()
    measured = deployment.calibrate(inputs)
    plans = [planned, *map(_C.plan.Plan.from_json, others)]
    # What was measured is the same on all ranks, and so is every decision.
    best, shapes = choose.shapes(plans, measured, run) if measured else (0, [])
    shape = plans[best]
    _take(deployment, shape)
    if others:
        deployment.hold()
    if not measured:  # it does not train
        return

    numbered = {shape.micro_batches: shape}

    def run_with(count):
        text = on_rank(0, world, lambda: planner.with_micro_batches(shape, count))
        if not text:
            return None
        numbered[count] = _C.plan.Plan.from_json(text)
        return run(numbered[count])

    counts = on_rank(0, world, lambda: planner.other_micro_batches(shape))
    count, numbers = choose.micro_batches(shape.micro_batches, shapes[best], counts, run_with)
    _take(deployment, numbered[count])

    def settled():
        notes = _notes(deployment.plan, zip(plans, shapes, strict=False), numbers)
        return planner.step.calibrated(deployment.plan, numbers[count], notes)

    deployment.plan = _C.plan.Plan.from_json(on_rank(0, world, settled))
    predict = planner.step.at_speed if world.rank == 0 else None
    deployment.speed = Speed(numbers[count]["compute_ns"], predict)


def _take(deployment, plan):
    if deployment.plan is not plan:
        deployment.replan(plan)


def _notes(plan, shapes, numbers) -> dict:
    """What was tried beside ``plan``: pairs of plans of other shapes and what was measured, and the
    same by numbers of micro-batches."""
    tried_shapes = [
        {
            "replicas": [len(stage.ranks) for stage in other.stages],
            "schedule": other.schedule,
            "interleave": other.interleave,
            "micro_batches": other.micro_batches,
            "run_ns": round(measured["shortest_ns"]),
        }
        for other, measured in shapes
    ]
    tried_numbers = [
        {"micro_batches": count, "run_ns": round(measured["shortest_ns"])}
        for count, measured in numbers.items()
    ]
    notes = {}
    if len(tried_numbers) > 1:
        notes["tried_micro_batches"] = tried_numbers
    if len(tried_shapes) > 1:
        notes["tried_shapes"] = tried_shapes
        notes["alternatives"] = json.loads(plan.notes)["alternatives"]
        ran = [candidates.shape(each) for each in tried_shapes]
        for other in notes["alternatives"]:
            if candidates.shape(other) in ran and not other["why"].startswith(("slower", "needs")):
                other["why"] += ", but ran longer"
    return notes
