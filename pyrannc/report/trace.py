"""Timelines of training steps of all ranks in one file, for Perfetto and chrome://tracing.

The format is the JSON array of Google's "Trace Event Format". Each rank is a process with two
threads, what the executor does and what the training loop does, beside it the process that the plan
foretells; an arrow goes from each message's send to its receive.
"""

import json
import os
import time

from pyrannc import _C, files, log
from pyrannc.errors import RaNNCError
from pyrannc.job import device_facts
from pyrannc.job.agreement import hosts_of
from pyrannc.ranks import gathered, of_rank, on_rank
from pyrannc.report import destinations

#: Rounds in which hosts compare their clocks; the median counts.
#: tuned by: a safety margin: the median of nine stands four late rounds.
#: without it: a single round is off by what one rank was late.
CLOCK_ROUNDS = 9
_LOOP = 1  # thread of the training loop


class Trace:
    """Collects the steps of one deployment; every rank has one, and all of them the same steps.

    Args:
        deployment: At work, before or between steps.
        path: Where rank 0 writes.
        most_steps: After them it is over; None: when :meth:`finish` is called.
    """

    def __init__(self, deployment, path, most_steps=None):
        world = deployment.world
        self._deployment, self._most = deployment, most_steps
        self._earlier_ns = _earlier_ns(world)
        self._texts, self._marks = [], []
        self._steps = 0  # that have begun
        self.over = False
        self._program = _C.plan.lower(
            deployment.plan,
            deployment.task.captured.graph,
            deployment.local_rows,
            True,
            deployment.task.outputs,
        )
        self._file = _File(path) if world.rank == 0 else None

    def step_begins(self) -> None:
        """Before the forward of a step as planned. Collective after 1, 2, 4, 8, ... steps."""
        if self.over:
            return
        self._take()
        if self._steps == self._most or (self._most and self._steps & (self._steps - 1) == 0):
            self._collect()
        if self._steps == self._most:
            self.over = True
            return
        self._steps += 1

    def mark(self, name, begin_ns) -> None:
        """What the training loop has done since ``begin_ns`` of ``time.monotonic_ns()``."""
        if not self.over and self._steps:
            self._marks.append((name, begin_ns, time.monotonic_ns(), _held_bytes(self._device())))

    def finish(self) -> None:
        """Writes the steps so far. Collective."""
        if not self.over:
            self._take()
            self._collect()
            self.over = True

    def _device(self):
        return self._deployment.task.device

    def _take(self):
        """The step before this one, which has ended."""
        if not self._marks:
            return
        step, rank = self._steps - 1, self._deployment.world.rank
        timeline = self._deployment.first.executor.timeline
        self._texts.append(
            _C.runtime.trace_events(self._program, rank, timeline, step, self._earlier_ns)
        )
        begin_ns = self._marks[0][1] - self._earlier_ns
        events = []
        if step == 0:
            events.append({"name": "thread_name", "ph": "M", "args": {"name": "training loop"}})
            if rank == 0:
                foretold = _C.plan.foretold_events(
                    self._deployment.plan, self._program, begin_ns, step
                )
                self._texts.append(foretold)
        for name, begin, end, held in self._marks:
            at = {"ph": "X", "ts": (begin - self._earlier_ns) / 1e3, "dur": (end - begin) / 1e3}
            events.append({"name": name, "cat": "loop", "args": {"step": step}} | at)
            at = {"ph": "C", "ts": (end - self._earlier_ns) / 1e3}
            if held is not None:
                events.append({"name": "memory", "args": {"MiB": round(held / 2**20, 3)}} | at)
        place = {"pid": rank, "tid": _LOOP}
        self._texts.append(",\n".join(json.dumps(place | event) for event in events))
        self._marks = []

    def _collect(self):
        """What is new goes to rank 0, which writes all there is so far."""
        world = self._deployment.world
        mine = ",\n".join(text for text in self._texts if text)
        self._texts = []
        found = gathered(world, mine)
        goes_on = True
        if self._file:
            goes_on = self._file.add(found)
        self.over = not of_rank(0, world, goes_on)


class trace:
    """Writes what all ranks do in the training steps of a ``with`` block to one file.

    Every rank enters and leaves it, after the model's first call. Perfetto (ui.perfetto.dev) and
    chrome://tracing open the file; rank 0 writes it at the end of the block. The setting
    ``trace_events`` does the same from the start, for ``trace_steps`` steps.

    Args:
        model: The :class:`RaNNCModule`.
        path: The file.

    Raises:
        ConfigError: The file cannot be written; on every rank, before the block runs.

    >>> model = pyrannc.RaNNCModule(torch.nn.Linear(4, 2))
    >>> step = lambda: model(torch.ones(8, 4)).mean().backward()
    >>> step()
    >>> with pyrannc.trace(model, "trace.json"):
    ...     step()
    >>> open("trace.json").read(1)
    '['
    """

    def __init__(self, model, path):
        self._deployment = model._deployed("trace")
        self._path = os.fspath(path)

    def __enter__(self):
        deployment = self._deployment
        before = deployment.steps.trace
        if before is not None and not before.over:
            raise RaNNCError("a trace of this model is being written already")
        on_rank(0, deployment.world, lambda: destinations.check_file(self._path, "trace"))
        deployment.steps.trace = Trace(deployment, self._path)
        return self

    def __exit__(self, kind, *_):
        found = self._deployment.steps.trace
        self._deployment.steps.trace = None
        if kind is None:
            found.finish()


class _File:
    def __init__(self, path):
        self._path, self._texts = path, []

    def add(self, texts) -> bool:
        """Whether it could be written; a warning says where not."""
        self._texts += [text for text in texts if text]
        try:
            files.write_whole(self._path, "[\n" + ",\n".join(self._texts) + "\n]\n")
        except OSError as error:
            log.warn(
                "deploy",
                f"the trace ends here: {self._path} cannot be written: {error.strerror}",
            )
            return False
        return True


def _earlier_ns(world) -> int:
    """What this rank's monotonic clock shows beyond the common one, which begins now. Collective.

    Ranks of one host share their clock. Others read it right after they have left a barrier
    together, several times; the median of the differences counts, and is off by what they leave it
    apart: some microseconds beyond the latency of the network.
    """
    stamps = []
    for _ in range(CLOCK_ROUNDS):
        world.barrier()
        stamps.append(gathered(world, time.monotonic_ns()))
    hosts = hosts_of(world)
    zero = stamps[-1][0]
    if hosts[world.rank] == hosts[0]:
        return zero
    # All ranks of a host take the offset of its first one.
    first = hosts.index(hosts[world.rank])
    differences = sorted(each[first] - each[0] for each in stamps)
    return zero + differences[len(differences) // 2]


def _held_bytes(device) -> int | None:
    """Bytes of tensors on an accelerator, where its backend says that, or of the process."""
    if device.type != "cpu":
        return device_facts.allocated_bytes(device)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
