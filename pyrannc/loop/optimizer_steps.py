"""How often the user's optimizers have stepped, which has to be the same on all ranks."""

import weakref

from pyrannc.errors import RaNNCError
from pyrannc.job import process
from pyrannc.loop import at_work


class OptimizerSteps:
    """Counts the steps of all optimizers with parameters of a deployment.

    Attributes:
        taken: Since the deployment was made.
    """

    def __init__(self, deployment):
        self.taken = 0
        self._deployment = weakref.ref(deployment)
        process.after_optimizer_steps(self, OptimizerSteps._count)

    def _count(self, optimizer):
        if self._deployment() not in at_work.of_optimizer(optimizer):
            return
        self.taken += 1
        if self._deployment().call_agreement.summoned is not None:
            raise RaNNCError(
                "optimizer.step() inside summon(), at whose end not every rank keeps what it has "
                "changed.\n  Step after the end of the block; the parameters are no longer of one "
                "model: load a checkpoint."
            )
