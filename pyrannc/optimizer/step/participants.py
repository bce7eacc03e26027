"""All that takes part in a step of an optimizer, in its order."""

from pyrannc import live_deployments
from pyrannc.errors import RaNNCError
from pyrannc.job import process
from pyrannc.optimizer.step.count import Count
from pyrannc.optimizer.step.early import Early
from pyrannc.optimizer.step.fused import Fused
from pyrannc.optimizer.step.hidden_gradients import HiddenGradients
from pyrannc.optimizer.step.late import Late
from pyrannc.optimizer.step.masters import Masters
from pyrannc.optimizer.step.parts import Parts
from pyrannc.optimizer.step.penalties import Penalties
from pyrannc.optimizer.step.shards import Shards
from pyrannc.optimizer.step.step import Step
from pyrannc.optimizer.step.timer import Timer
from pyrannc.optimizer.step.unsummed import Unsummed

#: From the outside to the inside: each begins after those before it, and ends before them.
PARTICIPANTS = (
    Early(),
    Unsummed(),
    Late(),
    Penalties(),
    Count(),
    Timer(),
    HiddenGradients(),
    Parts(),
    Shards(),
    Masters(),
    Fused(),
)


def install() -> None:
    """Once per process: they take part in the steps of all optimizers."""
    process.around_optimizer_steps(_run, _refuse)


def _run(code, optimizer, args, kwargs):
    return Step(optimizer, PARTICIPANTS).run(code, args, kwargs)


def _refuse(optimizer):
    if live_deployments.of_optimizer(optimizer):
        raise RaNNCError(
            f"optimizer.step(): step() of the class {type(optimizer).__name__} was replaced after "
            "the optimizer was made, so RaNNC cannot find the code that steps this rank's part.\n  "
            "Decorate what replaces it with functools.wraps(), or replace it before."
        )
