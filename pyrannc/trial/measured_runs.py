"""Runs a plan a few times before the first step, to know what its actions really take."""

import dataclasses
import resource
import time

import torch

from pyrannc import _C
from pyrannc.capture import random_states
from pyrannc.ranks import gathered
from pyrannc.state import named_tensors

#: After a run that takes longer there is no other.
#: tuned by: a deadline: what a first step may wait.
#: without it: the first step of a slow model waits for three runs.
SLOW_S = 2.0


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a plan runs. Quick ones run more often, because a short run is more easily
    disturbed: up to ``most`` times while all together take less than ``enough_s``. The first run
    may take twice as long as a step, as memory comes from the system, so it is the only one only if
    it takes longer than ``first_s``."""

    least: int
    most: int
    enough_s: float
    first_s: float = SLOW_S

    def expected_s(self, run_s) -> float:
        """What all runs take, if one takes ``run_s``."""
        return max(self.least * run_s, min(self.most * run_s, self.enough_s))


#: Runs of the planner's plan, and of one that is compared with it.
#: tuned by: `benchmarks/predicted_and_measured.py`; the numbers were not varied one by one.
#: without it: the time of a short run is that of whatever disturbed it; with more, the first step
#: waits longer.
OF_FIRST_PLAN = Patience(least=3, most=15, enough_s=1.5, first_s=20.0)
OF_ANOTHER_PLAN = Patience(least=2, most=7, enough_s=1.0)


def measure(
    executor,
    tensors,
    differentiable,
    program,
    local_rows,
    world,
    trial=None,
    patience=OF_FIRST_PLAN,
    written=(),
    device=random_states.HOST,
):
    """What every action of the executor's training Program takes, the same answer on all ranks.

    Collective. Runs forward and backward and throws the gradients away; buffers, parameters that
    the model writes and random numbers are afterwards as before. The first run warms up and does
    not count.

    Args:
        executor: ``_C.runtime.Executor``.
        tensors: Its inputs, parameters and buffers.
        differentiable: Which of its outputs have a gradient.
        program: ``_C.plan.Program`` that it runs on ``local_rows``.
        local_rows: Of all ranks.
        world: The communicator of the job.
        trial: ``optimizer_trial.StepBesideRuns``, which ends each run; or None.
        patience: How often it runs.
        written: Parameters that its forward writes.
        device: On which the executor computes.

    Returns:
        ``_C.predict.MeasuredRuns``.
    """
    *_, buffers = tensors
    kept = [(tensor, tensor.detach().clone()) for tensor in (*buffers, *written)]
    random = random_states.of_torch(device)
    runs, seconds = [], []
    try:
        while len(runs) < patience.least or (
            len(runs) < patience.most and sum(seconds) < patience.enough_s
        ):
            mine = _run(executor, tensors, differentiable, local_rows, world, trial, device)
            mine["host"] = world.host
            everyone = gathered(world, mine)
            runs.append([_C.predict.RecordedRun(**rank) for rank in everyone])
            seconds.append(max(rank["seconds"] for rank in everyone))
            if seconds[-1] > (SLOW_S if len(runs) > 1 else patience.first_s):
                break
    finally:
        random_states.put(random, device)
        with torch.no_grad():
            for tensor, before in kept:
                named_tensors.write(tensor, before)
    return _C.predict.summarize(program, runs)


def _run(executor, tensors, differentiable, local_rows, world, trial, device):
    """One run on this rank: arguments of ``_C.predict.RecordedRun``."""
    _C.runtime.wait_for(str(device))
    before = resource.getrusage(resource.RUSAGE_THREAD)
    begin = time.perf_counter()
    world.all_gather(b"\0" * 32)  # as ranks agree on every call
    computed = executor.times.compute_ns
    begin_cpu = time.thread_time_ns()
    call = executor.forward(*tensors, local_rows, True)
    gradients = [
        torch.ones_like(output) if wanted and output is not None else None
        for output, wanted in zip(call.outputs, differentiable, strict=True)
    ]
    gradients = call.backward(gradients)
    cpu = time.thread_time_ns() - begin_cpu
    optimizer_ns = trial.step(gradients) if trial is not None else 0
    _C.runtime.wait_for(str(device))
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_THREAD)
    # What computes on the host waits for pages, and an accelerator does not.
    paged = device.type == "cpu" and after.ru_minflt > before.ru_minflt
    actions, inside = {}, 0
    for span in executor.timeline:
        inside += span.cpu_ns
        if span.action >= 0:
            actions[span.action] = [span.end_ns - span.begin_ns, span.cpu_ns, span.end_ns]
    return {
        "seconds": seconds,
        "paging_seconds": after.ru_stime - before.ru_stime if paged else 0.0,
        "around_ns": max(cpu - inside, 0),
        "compute_ns": executor.times.compute_ns - computed,
        "optimizer_ns": optimizer_ns,
        "optimizer_factor": trial.factor if trial is not None else 0.0,
        "actions": [[index, *spent] for index, spent in actions.items()],
        "one_thread": device.type == "cpu" and torch.get_num_threads() == 1,
    }
