"""Parameters of other ranks have no gradient while an optimizer steps, so that it skips them."""

from pyrannc.optimizer.step.participant import Lender
from pyrannc.state.released import released_of


class HiddenGradients(Lender):
    """Of the parameters that the optimizer holds, and of all of the models it belongs to."""

    def lend(self, step, lent):
        hidden = set()
        for deployment in step.deployments:
            if deployment.world.size > 1:
                hidden.add(deployment.owners.gradients)
        for released in released_of(step.held):
            if released.place_elsewhere.gradients is not None:
                hidden.add(released.place_elsewhere.gradients)
        for gradients in hidden:
            gradients.hide()
            lent.append(gradients)

    def take_back(self, step, lent):
        for gradients in lent:
            gradients.show()
