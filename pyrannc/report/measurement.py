"""Measured against predicted: time of a step and memory of each stage."""

import textwrap
import weakref

from pyrannc import _C
from pyrannc.job import process
from pyrannc.ranks import gathered, on_rank
from pyrannc.report import resident_memory, summary, time_shares, training_steps
from pyrannc.report.speed import AtSpeed
from pyrannc.state import named_tensors
from pyrannc.state.released import is_released


class measure:
    """Measures the training steps of a ``with`` block against the plan's predictions.

    Every rank enters and leaves it, after the model's first call. Afterwards ``str()`` of it is a
    table, and its attributes hold the numbers, equal on all ranks.

    Args:
        model: The :class:`RaNNCModule`.
        optimizer: Its state counts as memory. Default: those that the model was given.

    Attributes:
        iteration_ms: Mean time of one step (forward, backward and the optimizer that the model
            was given) on the slowest rank.
        peak_mib: For each stage, the largest peak of its ranks: tensors held and temporaries.
        resident_mib: The same of their processes, as the system counts: with Python, torch, and
            whatever else is in them. It restarts the system's peak of each process (``VmHWM``).
        shares: For each rank, what its steps consisted of, as shares of their time: ``compute``,
            ``send``, ``receive`` and ``reduce`` (work of the computing thread), ``idle`` (waiting
            for other ranks), and the ``rest``, which is the optimizer and Python.
        hidden: For each rank the share spent on communication that could have been hidden: beyond
            the waiting that is left when messages take no time.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    >>> model = pyrannc.RaNNCModule(model)
    >>> step = lambda: model(torch.ones(8, 4)).mean().backward()
    >>> step()
    >>> with pyrannc.measure(model) as measured:
    ...     step()
    >>> measured.iteration_ms > 0
    True
    """

    def __init__(self, model, optimizer=None):
        self._deployment = model._deployed("measure")
        given = self._deployment.task.optimizers
        self._optimizers = given if optimizer is None else [optimizer]
        self.iteration_ms, self.peak_mib, self.resident_mib = 0.0, [], []
        self.shares, self.hidden = [], []
        self._now = {}

    def __enter__(self):
        model = self._deployment.model
        self._held = training_steps.held_bytes(model, self._optimizers, with_gradients=False)
        if not self._optimizers:
            self._held += self._deployment.late_optimizers.state_bytes()
        # Gradients of the step before are usually freed by zero_grad(), which the recorder does
        # not see, as it did not see them come: they count only if they outlive the block.
        self._old = [
            (weakref.ref(tensor.grad), tensor.grad.nbytes)
            for tensor in {id(t): t for t in named_tensors.tensors(model).values()}.values()
            if not is_released(tensor) and tensor.grad is not None
        ]
        self._seconds, self._count = self._deployment.steps.seconds, self._deployment.steps.count
        self._spent = self._deployment.steps.spent()
        process.restart_resident_peak()
        self._recorder = _C.runtime.MemoryRecorder(str(self._deployment.task.device))
        self._recorder.__enter__()
        return self

    def __exit__(self, kind, *_):
        self._recorder.__exit__(None, None, None)
        if kind is not None:
            return
        outlived = sum(size for gradient, size in self._old if gradient() is not None)
        world = self._deployment.world
        count = self._deployment.steps.count - self._count
        seconds = self._deployment.steps.seconds - self._seconds
        mine = {
            "ms": 1e3 * seconds / max(count, 1),
            "shares": time_shares.between(self._spent, self._deployment.steps.spent(), seconds),
            "mib": (self._held + outlived + self._recorder.peak_bytes) / 2**20,
            "resident": resident_memory.peak_bytes() / 2**20,
        }
        ranks = gathered(world, mine)
        self.iteration_ms = max(rank["ms"] for rank in ranks)
        self.shares = [rank["shares"] for rank in ranks]
        seconds = [rank["ms"] / 1e3 for rank in ranks]
        speed = self._deployment.speed
        if speed is not None:
            found = on_rank(0, world, lambda: speed.during(seconds, self.shares))
            self._now = AtSpeed(*found)
        self.hidden = time_shares.hidden(self._deployment.plan, self.shares)
        self.peak_mib, self.resident_mib = (
            [
                max(ranks[rank][what] for rank in stage.ranks)
                for stage in self._deployment.plan.stages
            ]
            for what in ("mib", "resident")
        )

    def __str__(self) -> str:
        plan = self._deployment.plan
        peaks, processes = (
            [mib * 2**20 for mib in of] for of in (self.peak_mib, self.resident_mib)
        )
        process = resident_memory.compare(
            dict(enumerate(self._deployment.process_bytes)), dict(enumerate(processes))
        )
        return (
            f"{training_steps.compare(plan, self.iteration_ms, peaks, self._now)[0]}\n"
            f"{textwrap.fill(process, summary.WIDTH)}\n"
            f"{time_shares.show(plan, self.shares, self._now)}"
        )
