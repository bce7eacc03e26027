"""No step over gradients that no_sync() has kept, and nobody has summed."""

from pyrannc.optimizer.step.participant import Participant


class Unsummed(Participant):
    def before(self, step):
        for deployment in step.deployments:
            if deployment.task.config.guard_no_sync:
                deployment.unsummed.check("optimizer.step()")
