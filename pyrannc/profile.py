"""What every operator of a graph costs: times measured, saved bytes from autograd's own hooks."""

import json
import math
import sys
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pyrannc import _C, log

# Progress is worth showing from this many seconds on; plain lines come this far apart.
_QUIET_S = 2.0
_LINE_S = 5.0


def profile(graph, objects, world, local_rows):
    """Costs of all nodes of ``graph``, equal on every rank.

    Collective. Each distinct operator is timed once, forward and backward, at a few numbers of
    rows; the ranks share the work.

    Args:
        graph: ``_C.ir.Graph``.
        objects: The torch objects that it refers to.
        world: The communicator of the job.
        local_rows: Rows of one rank's batch.
    """
    rows = row_counts(local_rows)
    # Python's share of the work is short and the same everywhere: one rank does it.
    saved = saved_bytes(graph, objects, rows) if world.rank == 0 else None
    saved = json.loads(world.broadcast(json.dumps(saved).encode(), 0).decode())
    return time_operators(graph, objects, saved, world, rows)


def time_operators(graph, objects, saved, world, rows):
    """The measured part of :func:`profile`: times all distinct operators at each of ``rows``."""
    with _Progress(world.rank == 0) as progress:
        return _C.profile.measure(graph, objects, saved, world, rows, progress=progress)


def row_counts(local_rows):
    """The numbers of rows to time: two or three, up to a rank's batch.

    Never one row, at which some operators take other paths (batch normalisation refuses it).
    """
    counts = sorted({2, max(2, math.ceil(local_rows / 2)), max(2, local_rows)})
    return counts if len(counts) > 1 else [2, 4]


def saved_bytes(graph, objects, rows):
    """For each node and number of rows, the bytes that autograd keeps for the backward.

    Each storage counts at the first node that saves it; parameters, buffers and constants are
    there anyway. Takes neither memory nor arithmetic: the tensors are fake, so some operators
    (those whose result depends on data) cannot run; then the bytes are estimated from the graph.
    """
    line = _sizes_are_lines(graph)
    try:
        found = [_saved_at(graph, objects, n) for n in ((rows[0], rows[-1]) if line else rows)]
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        log.warn("profile", f"bytes saved for backward are estimated, not measured: {reason}")
        table = _C.cost.estimate(graph, _C.cost.device_model("cpu"), rows)
        return [[cost.saved_bytes for cost in node] for node in table.node]
    if not line:
        return [list(node) for node in zip(*found, strict=True)]
    shares = [(count - rows[0]) / max(rows[-1] - rows[0], 1) for count in rows]
    return [
        [round(low + share * (high - low)) for share in shares]
        for low, high in zip(*found, strict=True)
    ]


def _sizes_are_lines(graph):
    """Whether no tensor grows with the square of the rows, as similarities of all pairs do, nor one
    inside an operator may: attention whose words are the rows."""
    return not _C.ir.row_mixes(graph) and all(
        sum(per_row != 0 for _, per_row in value.dims) < 2 for value in graph.values
    )


def _saved_at(graph, objects, rows):
    saved = [0] * len(graph.nodes)
    kept = {}  # by address; a storage that is held keeps its address
    node = 0

    def enter(index):
        nonlocal node
        node = index

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in kept:
            kept[storage._cdata] = storage
            saved[node] += storage.nbytes()

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)
    with torch.inference_mode(False), FakeTensorMode(), hooks:
        tensors, is_input = _C.profile.placeholders(graph, rows)
        for tensor, batched in zip(tensors, is_input, strict=True):
            if not batched:
                storage = tensor.untyped_storage()
                kept[storage._cdata] = storage
        _C.profile.replay(graph, objects, tensors, rows, enter)
    return saved


class _Progress:
    """Called with (done, total): a bar with the time left on a terminal, else lines."""

    def __init__(self, shown):
        self._shown = shown
        self._bar = None

    def __enter__(self):
        self._begin = self._last_line = time.monotonic()
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done, total):
        now = time.monotonic()
        if not self._shown or now - self._begin < _QUIET_S:
            return
        if sys.stderr.isatty():
            self._advance_bar(done, total)
        elif now - self._last_line >= _LINE_S:
            self._last_line = now
            left = (now - self._begin) * (total - done) / done
            log.info("profile", f"measured {done} of {total} operators, about {left:.0f} s left")

    def _advance_bar(self, done, total):
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = (
                "measuring operators",
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done)
