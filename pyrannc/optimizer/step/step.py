"""Scopes around the code of an optimizer's step, between the hooks before and after the step.

Each is a context manager, so what it begins has an end, also when the step raises, and no hook sees
it. The closure of a step is the user's code: it runs outside of all scopes.
"""

import contextlib

from pyrannc import live_deployments
from pyrannc.job import process
from pyrannc.state import tensor_parts
from pyrannc.state.released import is_released


def install() -> None:
    """Once per process: the scopes of wrapped models' optimizers."""
    process.around_optimizer_steps("timer", _timed)
    process.around_optimizer_steps("gradients", _without_gradients_elsewhere)
    process.around_optimizer_steps("parts", _on_parts)
    process.around_optimizer_steps("shards", _on_shards)


def is_tried(optimizer) -> bool:
    """Whether RaNNC steps it, on copies of parameters."""
    return getattr(optimizer, "is_tried", False)


def outside(closure, scope):
    """A closure that runs ``closure``, the user's, inside ``scope()``, a context manager that
    suspends what the step has begun; None where there is none."""
    if closure is None:
        return None

    def call(*args, **kwargs):
        with scope():
            return closure(*args, **kwargs)

    return call


@contextlib.contextmanager
def hidden_gradients(optimizer, closure=None):
    """Inside, parameters of other ranks have no gradient: those that ``optimizer`` holds, and all
    of the models it belongs to. Gives the closure to step with."""
    models = {each.owners.gradients for each in live_deployments.of_optimizer(optimizer)}
    for group in optimizer.param_groups:
        models |= {each.place_elsewhere.gradients for each in group["params"] if is_released(each)}
    with contextlib.ExitStack() as stack:
        for gradients in models - {None}:
            stack.enter_context(gradients.hidden())
            closure = outside(closure, gradients.shown)
        yield closure


@contextlib.contextmanager
def _timed(optimizer, closure):
    with contextlib.ExitStack() as stack:
        for deployment in _deployments(optimizer):
            if any(each is optimizer for each in deployment.task.optimizers):
                stack.enter_context(deployment.steps.optimizer())
        yield closure


@contextlib.contextmanager
def _without_gradients_elsewhere(optimizer, closure):
    if is_tried(optimizer):
        yield closure
    else:
        with hidden_gradients(optimizer, closure) as closure:
            yield closure


@contextlib.contextmanager
def _on_parts(optimizer, closure):
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if not any(map(tensor_parts.is_part, held)):
        yield closure
        return
    with contextlib.ExitStack() as inside:
        inside.enter_context(tensor_parts.as_tensors(held))

        @contextlib.contextmanager
        def outside_again():
            inside.close()
            try:
                yield
            finally:
                inside.enter_context(tensor_parts.as_tensors(held))

        yield outside(closure, outside_again)


@contextlib.contextmanager
def _on_shards(optimizer, closure):
    with contextlib.ExitStack() as stack:
        for deployment in _deployments(optimizer):
            if deployment.sharded_steps:
                steps = deployment.sharded_steps.around(optimizer, closure)
                closure = stack.enter_context(steps)
        yield closure


def _deployments(optimizer):
    return [] if is_tried(optimizer) else live_deployments.of_optimizer(optimizer)
