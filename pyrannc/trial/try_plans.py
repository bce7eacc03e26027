"""Before the first step: what the plan's actions take, and whether another plan is faster."""

import functools

from pyrannc import _C, progress
from pyrannc.ranks import on_rank
from pyrannc.report.speed import Speed
from pyrannc.trial import choose, measured_runs


def try_plans(deployment, planner, inputs) -> None:
    """Runs the plan, the best ones of other arrangements, and the fastest of them with other
    numbers of micro-batches; what is the fastest stays, with the time that follows from its runs.

    Collective, for a deployment that does not hold() yet. Rank 0 has the ``planner``.
    """
    world, planned = deployment.world, deployment.plan

    done, most = 0, 1  # plans that were run, and that are worth it

    def run(plan):
        deployment.replan(plan)
        return ran(deployment.calibrate(inputs, measured_runs.OF_ANOTHER_PLAN))

    def ran(measured):
        nonlocal done
        done += 1
        progress.advance(done, most)
        return measured

    def of_other_arrangements():
        if deployment.task.lacks_values:  # no rank could run the parts of another one
            return []
        return [plan.to_json() for plan in planner.of_other_arrangements(planned)]

    others = on_rank(0, world, of_other_arrangements)
    if not others:  # then no rank has to have more than it needs
        deployment.hold()
    most += len(others)
    measured = ran(deployment.calibrate(inputs))
    plans = [planned, *map(_C.plan.Plan.from_json, others)]
    # What was measured is the same on all ranks, and so is every decision.
    best, arrangements = choose.arrangements(plans, measured, run) if measured else (0, [])
    arrangement = plans[best]
    _take(deployment, arrangement)
    if others:
        deployment.hold()
    if not measured:  # it does not train
        return

    numbered = {arrangement.micro_batches: arrangement}

    def run_with(count):
        def with_count():
            plan = planner.with_micro_batches(arrangement, count)
            return plan and plan.to_json()

        text = on_rank(0, world, with_count)
        if not text:
            return None
        numbered[count] = _C.plan.Plan.from_json(text)
        return run(numbered[count])

    counts = on_rank(0, world, lambda: planner.other_micro_batches(arrangement))
    most = done + len(counts)
    count, numbers = choose.micro_batches(
        arrangement.micro_batches, arrangements[best], counts, run_with
    )
    _take(deployment, numbered[count])
    predict = None

    def settled():
        nonlocal predict
        found = planner.step.calibrated(deployment.plan, numbers[count])
        predict = functools.partial(planner.step.at_speed, found)
        return _C.partition.with_trials(
            found.plan,
            _tried(plans, arrangements),
            _tried([numbered[number] for number in numbers], numbers.values()),
        ).to_json()

    deployment.plan = _C.plan.Plan.from_json(on_rank(0, world, settled))
    deployment.speed = Speed(numbers[count].compute_ns, predict)


def _take(deployment, plan):
    if deployment.plan is not plan:
        deployment.replan(plan)


def _tried(plans, measured):
    """``plans``, as far as they were ``measured``, with the time of a run."""
    return [
        _C.partition.TriedPlan(
            _C.partition.arrangement_of(plan), plan.micro_batches, runs.shortest_ns
        )
        for plan, runs in zip(plans, measured, strict=False)
    ]
