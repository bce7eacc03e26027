"""Room in a device's memory for NCCL's connections: known when they are there, with the plan."""

from pyrannc import _C, log
from pyrannc.errors import InfeasibleError
from pyrannc.planning import planner_inputs
from pyrannc.ranks import on_rank


def make(task, agreed, planner, deployment) -> None:
    """Has another plan put to work where the one of ``deployment`` does not fit beside what NCCL
    has taken for its connections. Collective; rank 0 has the ``planner``.

    Connections stay, so that each plan is made for less than the one before, until one fits.

    Raises:
        InfeasibleError: None fits; names what the connections have left.
    """

    def plan_with(left):
        planner.limit_memory(left)
        try:
            return planner.plan_of_ranks().to_json()
        except InfeasibleError as error:
            raise InfeasibleError(
                f"{error}\n  Of {_in_mib(agreed.memory_bytes)} of a device's memory, NCCL's "
                f"connections have left {_in_mib(left)}."
            ) from None

    while True:
        left = _left(task, agreed)
        text = on_rank(0, task.world, lambda left=left: plan_with(left))
        if text == deployment.plan.to_json():
            return
        if task.world.rank == 0:
            log.info(
                "deploy",
                f"NCCL's connections have left {_in_mib(left)} of a device's memory, too little "
                f"for the plan, which needs {_in_mib(max(deployment.plan.step.peak_bytes))}: "
                "another one is taken",
            )
        deployment.replan(_C.plan.Plan.from_json(text))


def warn_of_little(task, agreed, plan) -> None:
    """Where ``plan`` does not fit all the same: it is from a file, or plans that were tried before
    it have taken connections, too. Collective."""
    left, needed = _left(task, agreed), max(plan.step.peak_bytes, default=0)
    if needed > left and task.world.rank == 0:
        log.warn(
            "deploy",
            f"a step of the plan needs {_in_mib(needed)} of a device's memory, of which NCCL's "
            f"connections have left {_in_mib(left)}: it may run out of memory",
        )


def _left(task, agreed) -> int:
    now = planner_inputs.memory_bytes(task, agreed.hosts.count(task.world.host))
    return min(now, agreed.memory_bytes)


def _in_mib(count) -> str:
    return f"{count / 2**20:.1f} MiB"
