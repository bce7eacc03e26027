"""Under tensor parallelism an optimizer steps a part of a parameter as a tensor of torch's."""

from pyrannc.optimizer.step.participant import Lender
from pyrannc.state import tensor_parts


class Parts(Lender):
    def lend(self, step, lent):
        lent += tensor_parts.as_tensors(step.held)

    def take_back(self, step, lent):
        tensor_parts.as_parts(lent)
