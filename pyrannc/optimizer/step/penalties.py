"""Terms of penalties that other ranks hold are asked for before a step changes the parameters."""

from pyrannc.optimizer.step.participant import Lender


class Penalties(Lender):
    """Also before what a closure has made is stepped."""

    def lend(self, step, lent):
        for deployment in step.deployments:
            deployment.owners.questions.before_step()

    def take_back(self, step, lent):
        pass
