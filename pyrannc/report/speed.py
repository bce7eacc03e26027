"""How fast the ranks compute during steps, compared with when their plan was measured.

A host that has other work to do, or gets hot, makes steps longer than predicted, and no plan
better. So beside the prediction stands what follows from the same costs at the speed of the steps.
"""

from typing import NamedTuple


class AtSpeed(NamedTuple):
    """What is predicted of steps at the speed that ranks have now."""

    factors: list  # [rank], how much longer it computes than when the plan was measured
    ns: float  # of a step
    idle_ns: list  # [rank], what it waits in a step


class Speed:
    """How fast the ranks of one plan are, beside what was predicted.

    Args:
        compute_ns: Of each rank, what it computed for in a run of the plan before the first step.
        predict: ``_C.plan.StepPrediction`` if the ranks compute ``factors`` times as long; on rank
            0.
    """

    def __init__(self, compute_ns, predict):
        self._compute_ns, self._predict = compute_ns, predict

    def during(self, seconds, shares) -> AtSpeed:
        """On rank 0: what is predicted at the speed of the steps that took so long.

        Args:
            seconds: Of one step, of each rank.
            shares: Of each rank, as ``shares.between`` returns them.
        """
        factors = [
            1e9 * of_step * rank["compute"] / before if before else 1.0
            for of_step, rank, before in zip(seconds, shares, self._compute_ns, strict=True)
        ]
        step = self._predict(factors)
        return AtSpeed(factors, step.ns, list(step.idle_ns))
