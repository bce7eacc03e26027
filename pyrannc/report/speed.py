"""How fast the ranks compute during steps, compared with when their plan was measured.

A host that has other work to do, or gets hot, makes steps longer than predicted, and no plan
better. So beside the prediction stands what follows from the same costs at the speed of the steps.
"""


class Speed:
    """Of the ranks of one plan.

    Args:
        compute_ns: Of each rank, what it computed for in a run of the plan before the first step.
        predict: Time of a step and its waiting, as in a plan's notes, if the ranks compute
            ``factors`` times as long; on rank 0.
    """

    def __init__(self, compute_ns, predict):
        self._compute_ns, self._predict = compute_ns, predict

    def during(self, seconds, shares) -> dict:
        """On rank 0: ``factors``, how much longer each rank computes, and what is predicted then.

        Args:
            seconds: Of one step, of each rank.
            shares: Of each rank, as ``shares.between`` returns them.
        """
        factors = [
            1e9 * of_step * rank["compute"] / before if before else 1.0
            for of_step, rank, before in zip(seconds, shares, self._compute_ns, strict=True)
        ]
        return {"factors": factors, **self._predict(factors)}
