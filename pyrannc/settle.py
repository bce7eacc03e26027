"""Before the first step: what the plan's actions take, and whether another plan is faster."""

from pyrannc import _C, calibrate, plan_trial
from pyrannc.agreement import on_rank


def settle(deployment, planner, inputs, optimizer) -> None:
    """Runs the plan, the best ones of other shapes, and the fastest of them with other numbers of
    micro-batches; what is the fastest stays, with the time that follows from its runs.

    Collective, for a deployment that does not hold() yet. Rank 0 has the ``planner()``.
    """
    world, planned = deployment.world, deployment.plan
    others = [
        _C.plan.Plan.from_json(text)
        for text in on_rank(0, world, lambda: planner().of_other_shapes(planned))
    ]
    if not others:  # then nothing that a rank does not need stays for runs
        deployment.hold()
    measured = deployment.calibrate(inputs, optimizer)
    # What was measured is the same on all ranks, and so is every decision.
    best, shapes = -1, {}
    if measured:

        def run_shape(index):
            deployment.replan(others[index])
            return deployment.calibrate(inputs, optimizer, calibrate.ANOTHER)

        best, shapes = plan_trial.shapes(measured, len(others), run_shape)
    shape = others[best] if best >= 0 else planned
    if others:
        _take(deployment, shape)
        deployment.hold()
    if not measured:
        return

    plans = {shape.micro_batches: shape}

    def run_number(count):
        text = on_rank(0, world, lambda: planner().with_micro_batches(shape, count))
        if not text:
            return None
        plans[count] = _C.plan.Plan.from_json(text)
        deployment.replan(plans[count])
        return deployment.calibrate(inputs, optimizer, calibrate.ANOTHER)

    counts = on_rank(0, world, lambda: planner().other_micro_batches(shape))
    taken, numbers = plan_trial.micro_batches(shape.micro_batches, shapes[best], counts, run_number)
    _take(deployment, plans[taken])
    tried = {
        "tried_shapes": [
            (planned if index < 0 else others[index], each["shortest_ns"])
            for index, each in shapes.items()
        ],
        "tried_micro_batches": [
            (plans[count], each["shortest_ns"]) for count, each in numbers.items()
        ],
    }
    deployment.plan = _C.plan.Plan.from_json(
        on_rank(0, world, lambda: planner().step.calibrated(plans[taken], numbers[taken], tried))
    )


def _take(deployment, plan):
    if deployment.plan is not plan:
        deployment.replan(plan)
