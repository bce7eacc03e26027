"""Training steps as they happen: how long they take, and how the plan's predictions turn out."""

import contextlib
import textwrap
import time

from pyrannc import _C, log
from pyrannc.job import elapsed
from pyrannc.optimizer import user_optimizer
from pyrannc.ranks import gathered
from pyrannc.report import matrix_work, metrics, resident_memory, summary, time_shares
from pyrannc.state import named_tensors
from pyrannc.state.released import is_released

#: The report comes after this step; the first steps, which warm up, do not count.
#: tuned by: when a report comes; nothing is decided by it.
#: without it: the first steps wait for memory from the system, and are reported as slower than
#: predicted.
REPORT_AFTER = 10
WARM_UP_STEPS = 3

#: A difference between prediction and measurement that is larger than this share of what is
#: measured is a warning, unless it is too small to matter.
#: tuned by: `rannc run -n 2 benchmarks/runtime/peers.py`: times within 10.6 % on a quiet machine.
#: without it: every report of a busy machine would be a warning.
SURPRISE = 0.15
SMALL_MS, SMALL_BYTES = 1.0, 2**20


class TrainingSteps:
    """Counts the steps of one deployment, and the time that forward, backward and the optimizer
    take on this rank, waiting for others included.

    After the tenth step every stage's time and memory is compared with its prediction, once.
    """

    def __init__(self, deployment):
        self.count = 0
        self._deployment, self._optimizers = deployment, deployment.task.optimizers
        self._activations = 0  # bytes between forward and backward
        self._peak = self._resident = 0
        self._device, self._spans = deployment.task.device, elapsed.Spans()
        self._start = (0, 0, {})  # step, part of the spans, and what was spent until then
        self._counts = True  # the step at hand
        self._optimizer_begin = None  # of a step that is under way
        self.spent_before = {}  # the first step, by runs of plans
        self.trace = None  # report.trace.Trace, while one is written
        self._record = None  # the last one
        self._sinks, self._every = None, 0

    def observe(self, config) -> None:
        """From here on records go to where the settings say, every ``metrics_every`` steps."""
        if config.metrics_file or config.tensorboard_dir:
            self._every = config.metrics_every
            self._sinks = metrics.Sinks(config) if self._deployment.world.rank == 0 else None

    def metrics(self) -> dict:
        """The last record of what all ranks took; see ``metrics.record``."""
        known = self._record or metrics.empty(self._deployment.plan, self.count)
        return known | {"steps": self.count} | self._deployment.audits.record()

    def forward(self, trains, as_planned):
        """Around the executor's forward; every rank's steps begin here, in the same order.

        Steps of another batch or other shapes than planned do not count.
        """
        if trains:
            self._counts = as_planned
        counts = trains and as_planned
        if counts:
            if self.count == 0:
                self.spent_before = self.spent()
            if self.count == WARM_UP_STEPS:
                self._start = (self.count, self._spans.new_part(), self.spent())
            if self.count == REPORT_AFTER:
                self._report()
            elif self._every and self.count > REPORT_AFTER and self.count % self._every == 0:
                self._exchange()
            if self.trace:
                self.trace.step_begins()
            self.count += 1
            self._activations = 0
        return self._timed(counts, "forward")

    def backward(self):
        """Around the executor's backward."""
        return self._timed(self._counts, "backward")

    def begin_optimizer(self):
        """The step of an optimizer begins; returns what one of the next two takes."""
        begun = self._optimizer_begin, time.monotonic_ns(), elapsed.now(self._device)
        self._optimizer_begin = begun[-1]
        return begun

    def drop_optimizer(self, begun) -> None:
        """It has failed, and takes no time."""
        self._optimizer_begin = begun[0]

    def end_optimizer(self, begun) -> None:
        outer, begin_ns, begin = begun
        self._optimizer_begin = outer
        if outer is not None:  # it counts with the step that calls it
            return
        if self.trace and self._counts:
            self.trace.mark("optimizer", begin_ns)
        if self._counts:
            self._spans.add(begin, elapsed.now(self._device))
            if WARM_UP_STEPS < self.count <= REPORT_AFTER:
                self._see_resident()

    @contextlib.contextmanager
    def _timed(self, counts, name):
        """Around one of them, if it counts; what fails does not."""
        if not counts:
            yield
            return
        begin_ns, memory = time.monotonic_ns(), contextlib.nullcontext()
        if WARM_UP_STEPS < self.count <= REPORT_AFTER:
            held = held_bytes(self._deployment.model, self._optimizers)
            held += self._deployment.late_optimizers.state_bytes()
            memory = _C.runtime.MemoryRecorder(str(self._device))
        with memory as recorded:
            # A closure's calls are of its step.
            begin = elapsed.now(self._device) if self._optimizer_begin is None else None
            yield
            if begin is not None:
                self._spans.add(begin, elapsed.now(self._device))
        if recorded is not None:
            self._peak = max(self._peak, held + self._activations + recorded.peak_bytes)
            self._activations += recorded.current_bytes
            self._see_resident()
        if self.trace:
            self.trace.mark(name, begin_ns)

    @property
    def seconds(self) -> float:
        """Of all steps that count; the host waits until an accelerator has done them."""
        return self._spans.seconds()

    def spent(self):
        """What the training calls of the planned run took so far on this rank."""
        return time_shares.spent(self._deployment.first.executor)

    def _see_resident(self):
        """What was freed in between stays with the process, so its peak shows afterwards."""
        self._resident = max(self._resident, resident_memory.resident_bytes())

    def _exchange(self):
        """What all ranks took since the last time, on every rank; and what follows at the speed of
        these steps, on rank 0. Collective."""
        count, part, spent = self._start
        passed = self._spans.seconds(part)
        mine = [
            passed / (self.count - count),
            self._peak,
            self._resident,
            time_shares.between(spent, self.spent(), passed),
        ]
        deployment = self._deployment
        ranks = gathered(deployment.world, mine)
        now = None
        if deployment.world.rank == 0 and deployment.speed:
            of_ranks, _, _, shares = zip(*ranks, strict=True)
            now = deployment.speed.during(of_ranks, shares)
        rows = sum(deployment.local_rows)
        task = deployment.task
        work = matrix_work.of_step(task.captured.graph, task.device, rows)
        self._record = (
            metrics.record(
                deployment.plan, deployment.process_bytes, self.count, rows, ranks, now, work
            )
            | deployment.audits.record()
        )
        self._start = (self.count, self._spans.new_part(), self.spent())
        if self._sinks:
            self._sinks.write(self._record)
        return now

    def _report(self):
        now = self._exchange()
        if self._deployment.world.rank != 0:
            return
        found = self._record
        peaks = [stage["peak_bytes"] for stage in found["stages"]]
        text, worst = compare(self._deployment.plan, found["step_ns"] / 1e6, peaks, now)
        log.info("deploy", summary.text(found))
        if worst > SURPRISE:
            log.warn(
                "deploy",
                f"a prediction of the plan is off by {worst:.0%}, so another plan may be better or "
                f"fit better (after {REPORT_AFTER} steps):\n{text}",
            )


def held_bytes(model, optimizers, with_gradients=True) -> int:
    """Parameters, buffers, gradients and optimizer state that this rank holds now."""
    held = {
        id(tensor): tensor
        for tensor in named_tensors.tensors(model).values()
        if not is_released(tensor)
    }
    total = sum(tensor.nbytes for tensor in held.values())
    if with_gradients:
        leaves = (tensor for tensor in held.values() if tensor.is_leaf)
        total += sum(tensor.grad.nbytes for tensor in leaves if tensor.grad is not None)
    return total + sum(map(user_optimizer.state_bytes, optimizers))


def compare(plan, iteration_ms, peak_bytes, now) -> tuple[str, float]:
    """Lines of predicted against measured values, and the largest relative error that may make
    another plan the better one. What slows down all ranks alike does not.

    Args:
        peak_bytes: Of each stage the largest of its ranks.
        now: What ``speed.Speed.during`` says of the steps, or None.
    """
    predicted_ns = plan.iteration_ns if plan.step.ns is None else plan.step.ns
    predicted_ms = predicted_ns / 1e6
    line = f"step: predicted {predicted_ms:.1f} ms"
    if now:
        low, high = (f"{of(now.factors):.2f}" for of in (min, max))
        line += (
            f", {now.ns / 1e6:.1f} ms at the speed of these steps (ranks compute "
            f"{low if low == high else f'{low} to {high}'} x as long as when planned)"
        )
    lines = textwrap.wrap(f"{line}, measured {iteration_ms:.1f} ms", summary.WIDTH)
    same = {}  # numbers of stages by what is said of them
    errors = []
    peaks = plan.step.peak_bytes or [
        stage.predicted and stage.predicted.peak_bytes for stage in plan.stages
    ]
    for index, (stage, measured) in enumerate(zip(plan.stages, peak_bytes, strict=True)):
        text = "nothing"
        if peaks[index]:
            text = f"{peaks[index] / 2**20:.1f} MiB"
            errors.append(_error(peaks[index], measured, SMALL_BYTES))
        said = (
            f"(ranks {', '.join(map(str, stage.ranks))}): memory predicted "
            f"{text}, measured {measured / 2**20:.1f} MiB"
        )
        same.setdefault(said, []).append(str(index))
    for said, numbers in same.items():
        many = "stages" if len(numbers) > 1 else "stage"
        lines += textwrap.wrap(f"{many} {', '.join(numbers)} {said}", summary.WIDTH)
    if predicted_ms:
        alike = now and max(now.factors) <= (1 + SURPRISE) * min(now.factors)
        compared_ms = now.ns / 1e6 if alike else predicted_ms
        errors.append(_error(compared_ms, iteration_ms, SMALL_MS))
    return "\n".join(lines), max(errors, default=0.0)


def _error(predicted, measured, small):
    difference = abs(predicted - measured)
    return difference / measured if difference > small and measured else 0.0
