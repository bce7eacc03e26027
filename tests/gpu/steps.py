"""Training steps in bf16, wrapped and not, and what they take."""

import gc
import statistics
import time

import device
import torch

import pyrannc

#: Of what is timed; a wrapped model looks at its own memory in the fourth to the tenth.
STEPS, WARM_UP = (2, 1) if device.SMALL else (10, 12)


def step_of(module, optimizer, batch, place):
    """A function that runs one step and returns its loss."""

    def step():
        optimizer.zero_grad()
        with torch.autocast(place.type, torch.bfloat16):
            loss = module(**batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def eager(model, place, rows=None, around=lambda module: module):
    """A step of ``timed_models.Model`` itself, or of what ``around`` makes of it."""
    module = model.on(place)
    optimizer = model.make_optimizer(module.parameters())
    batch = model.batch(rows or model.rows, place)
    return step_of(around(module), optimizer, batch, place)


def wrapped(model, place, rows=None, **settings):
    """A step of the wrapped model, and the RaNNCModule, which has its plan after the first."""
    module = model.on(place)
    optimizer = model.make_optimizer(module.parameters())
    module = pyrannc.RaNNCModule(module, optimizer, pyrannc.Config(**settings))
    return step_of(module, optimizer, model.batch(rows or model.rows, place), place), module


def warm_up(step, times=None):
    for _ in range(WARM_UP if times is None else times):
        step()
    torch.accelerator.synchronize()


def seconds(step, times=None):
    """Of one step, of some that follow on each other."""
    times = times or STEPS
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    torch.accelerator.synchronize()
    return (time.perf_counter() - begin) / times


def in_turns(*steps, rounds=3):
    """Seconds of a step of each, and of each the median of its quotients to the first one: clocks
    of a device change while it runs."""
    of_rounds = [[seconds(step) for step in steps] for _ in range(rounds)]
    medians = [statistics.median(each) for each in zip(*of_rounds, strict=True)]
    quotients = [[each / of_round[0] for each in of_round] for of_round in of_rounds]
    return medians, [statistics.median(each) for each in zip(*quotients, strict=True)]


def predicted_ms(module):
    plan = module.plan
    return (plan.iteration_ns if plan.step.ns is None else plan.step.ns) / 1e6


def predicted_bytes(module):
    """The peak of the first stage."""
    plan = module.plan
    if plan.step.peak_bytes:
        return plan.step.peak_bytes[0]
    return plan.stages[0].predicted.peak_bytes if plan.stages[0].predicted else 0


def forget(*_):
    """What was dropped is free again, for others, too."""
    gc.collect()
    torch.accelerator.synchronize()
    device.memory().empty_cache()
