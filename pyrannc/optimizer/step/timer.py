"""How long the steps of a deployment's own optimizers take."""

from pyrannc.optimizer.step.participant import Participant


class Timer(Participant):
    def before(self, step):
        timed = []
        for deployment in step.deployments:
            for each in deployment.task.optimizers:
                if each is step.optimizer:
                    timed.append((deployment.steps, deployment.steps.begin_optimizer()))
        return timed or None

    def after(self, step, begun):
        for steps, moments in reversed(begun):
            steps.end_optimizer(moments)

    def failed(self, step, begun):
        for steps, moments in reversed(begun):
            steps.drop_optimizer(moments)
