"""Measured against predicted: time of an iteration and memory of each stage."""

import json

import torch

from pyrannc import _C, state


class measure:
    """Measures the training steps of a ``with`` block against the plan's predictions.

    Every rank enters and leaves it, after the model's first call. Afterwards ``str()`` of it is a
    table, and its attributes hold the numbers, equal on all ranks.

    Attributes:
        iteration_ms: Mean time of one forward and backward on the slowest rank.
        peak_mib: For each stage, the largest peak of its ranks: tensors held and temporaries.

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
        self._optimizer = optimizer
        self.iteration_ms, self.peak_mib = 0.0, []

    def __enter__(self):
        self._held = self._held_bytes()
        self._seconds, self._steps = self._deployment.seconds, self._deployment.steps
        self._recorder = _C.runtime.MemoryRecorder()
        self._recorder.__enter__()
        return self

    def __exit__(self, kind, *_):
        self._recorder.__exit__(None, None, None)
        if kind is not None:
            return
        steps = self._deployment.steps - self._steps
        mine = {
            "ms": 1e3 * (self._deployment.seconds - self._seconds) / max(steps, 1),
            "mib": (self._held + self._recorder.peak_bytes) / 2**20,
        }
        ranks = [
            json.loads(item)
            for item in self._deployment.world.all_gather(json.dumps(mine).encode())
        ]
        self.iteration_ms = max(rank["ms"] for rank in ranks)
        self.peak_mib = [
            max(ranks[rank]["mib"] for rank in stage.ranks)
            for stage in self._deployment.plan.stages
        ]

    def _held_bytes(self) -> int:
        """Parameters, buffers, gradients and optimizer state that this rank holds now."""
        held = {id(tensor): tensor for tensor in state.tensors(self._deployment.model).values()}
        tensors = [tensor for tensor in held.values() if not tensor.is_meta]
        tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
        for entry in self._optimizer.state.values() if self._optimizer else ():
            tensors += [value for value in entry.values() if torch.is_tensor(value)]
        return sum(tensor.nbytes for tensor in tensors)

    def __str__(self) -> str:
        plan = self._deployment.plan
        step_ns = json.loads(plan.notes or "{}").get("step_ns", plan.iteration_ns)
        lines = [
            f"iteration: predicted {step_ns / 1e6:.0f} ms, measured {self.iteration_ms:.0f} ms"
        ]
        for index, (stage, measured) in enumerate(zip(plan.stages, self.peak_mib, strict=True)):
            predicted = (
                f"{stage.predicted.peak_bytes / 2**20:.1f} MiB" if stage.predicted else "nothing"
            )
            lines.append(
                f"stage {index} (ranks {', '.join(map(str, stage.ranks))}): memory predicted "
                f"{predicted}, measured {measured:.1f} MiB"
            )
        return "\n".join(lines)
