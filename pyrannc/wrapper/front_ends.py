"""Which front end captures a model: the one that is set, or the first that can and is right."""

import importlib

import torch

from pyrannc import _C, log, progress
from pyrannc.errors import TraceError
from pyrannc.ranks import gathered, on_all

TORCHSCRIPT, EXPORT, AUTO = "torchscript", "export", "auto"


def check_installed(name: str) -> None:
    """Raises TraceError where this process lacks what the front end ``name`` is made of."""
    lacks, other = "", TORCHSCRIPT
    if name == EXPORT:
        try:
            importlib.import_module("torch.export")
            importlib.import_module("pyrannc.capture.exported.program")
        except ImportError as error:
            lacks = f"torch.export of torch {torch.__version__} cannot be imported ({error})"
    elif not hasattr(_C.frontend, "Tracer"):
        lacks, other = "this build of RaNNC has none of torch's tracer", EXPORT
    if lacks:
        raise TraceError(
            f"the front end '{name}' is not installed: {lacks}.\n  Install a torch that has it and "
            f"build RaNNC with that, or set RANNC_FRONTEND={other} or Config(frontend='{other}')."
        )


class FrontEnds:
    """The front ends of one model, in the order in which they are tried.

    Attributes:
        used: Which one has captured it.

    Args:
        wanted: ``Config.frontend``.
        world: The communicator of the job.
        capture: ``capture(front_end, may_be_alone)`` captures the first call; ``may_be_alone``: see
            :class:`~pyrannc.capture.rows.whole_batch.WholeBatch`.
    """

    def __init__(self, wanted, world, capture):
        names = [TORCHSCRIPT, EXPORT] if wanted == AUTO else [wanted]
        alone = [(name, True) for name in names]
        self._left = [(name, False) for name in names] + alone if wanted == AUTO else alone
        self._chooses = wanted == AUTO
        self._world, self._capture, self._faults = world, capture, []
        self.used = None

    def first(self):
        """What the first of them that can has captured, the same one on every rank.

        Raises:
            TraceError: None can; says why of each.
        """
        with progress.phase("capturing the model", self._world.rank == 0):
            return self._first()

    def _first(self):
        while self._left:
            self.used, may_be_alone = self._left.pop(0)
            if not self._chooses:  # where one rank alone lacks it, the others would wait
                on_all(self._world, lambda: check_installed(self.used))
                return self._capture(self.used, may_be_alone)
            captured, fault = None, ""
            try:
                check_installed(self.used)
                captured = self._capture(self.used, may_be_alone)
            except TraceError as error:  # every rank goes on with the next one
                fault = str(error) or type(error).__name__
            faults = gathered(self._world, fault)
            if not any(faults):
                self._tell()
                return captured
            self._faults.append((self.used, next(filter(None, faults))))
        raise TraceError(
            "no front end can capture the model:\n"
            + "\n".join(f"  {name}: {fault}" for name, fault in self._faults)
        )

    def after(self, error):
        """The next one's capture, where that of ``used`` has turned out wrong on every rank; raises
        ``error`` where there is none."""
        if not self._chooses or not self._left:
            raise error
        self._faults.append((self.used, str(error)))
        return self.first()

    def _tell(self):
        if self._world.rank != 0:
            return
        if not self._faults:
            log.info("deploy", f"captured by the front end {self.used}")
        for name, fault in self._faults:
            log.warn(
                "deploy",
                f"captured by the front end {self.used}, as {name} could not: "
                f"{fault.splitlines()[0]}",
            )
