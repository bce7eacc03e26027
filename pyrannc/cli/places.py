"""Where the ranks of a start of ``rannc run`` are: its hosts, and the network that MPI uses."""

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path

from pyrannc.cli import hosts as reach

#: How long hosts are waited for that do not answer before a job is started again: where
#: ``--min-hosts`` lets it go on without them, and where it cannot.
#: tuned by: deadlines: a host restarts in minutes; one that has only lost its network for a while
#: is back within half a minute.
#: without it: a job waits for a host that has gone for good, or starts on one host too few.
LAST_CALL_S = 30
COME_BACK_S = 600


@dataclasses.dataclass(frozen=True)
class Place:
    """Of one start."""

    ranks: int
    hosts: str  #: as mpirun's --host takes them
    hostfile: str
    variables: dict[str, str]  #: those of the network, for mpirun and its ranks
    asked: tuple[str, ...] = ()  #: the names of the hosts, where they can be asked

    def is_over(self, mpirun: int) -> bool:
        """Whether the job has ended but for ``mpirun``, which waits for a host that has gone: no
        rank of this host is left, and another host does not answer."""
        return bool(self.asked) and not _ranks(mpirun) and not all(map(_answers, self.asked))


class Places:
    """Those of the starts of one job.

    Args:
        min_hosts: With how many hosts a job goes on that is started again; 0: with all.
    """

    def __init__(self, ranks: int, hosts: str, hostfile: str, min_hosts: int):
        self._all = Place(ranks, hosts, hostfile, {})
        self._min_hosts = min_hosts
        self._names = reach.names_of(hosts, hostfile) if hosts or hostfile else []
        by_other_means = "SLURM_JOB_ID" in os.environ or "OMPI_MCA_plm" in os.environ
        self._is_asked = len(self._names) > 1 and not by_other_means

    def first(self) -> Place:
        """Of the first start.

        Raises:
            Unreachable: Hosts do not reach each other; names them and the ports.
        """
        if not self._is_asked:
            return self._all
        try:
            found = reach.check(self._names)
        except reach.Unreachable as error:  # mpirun may have ways of its own
            _say(str(error))
            return self._all
        return self._over(found, self._all)

    def again(self) -> Place:
        """Of another start, when all hosts answer, or enough of them.

        Raises:
            Unreachable: Too few do; names the others.
        """
        if not self._is_asked:
            return self._all
        start = time.monotonic()
        said = None
        while True:
            there = [name for name in self._names if _answers(name)]
            gone = [name for name in self._names if name not in there]
            if not gone:
                return self._over(reach.check(self._names), self._all)
            waited = time.monotonic() - start
            if self._min_hosts and len(there) >= self._min_hosts and waited >= LAST_CALL_S:
                break
            if waited >= COME_BACK_S:
                fewer = "" if self._min_hosts else "; --min-hosts lets a job go on without some"
                raise reach.Unreachable(
                    f"{', '.join(gone)} did not come back within {waited:.0f} s{fewer}"
                )
            if gone != said:
                _say(f"waiting for {', '.join(gone)}, which cannot be reached")
                said = gone
            time.sleep(1)  # between two rounds of ssh to hosts that may be gone for minutes
        left = self._without(gone)
        _say(f"going on without {', '.join(gone)}: {left.ranks} ranks on {', '.join(there)}")
        return left if len(there) == 1 else self._over(reach.check(there), left)

    def _over(self, found, place):
        if found.blocked:
            lines = "\n  ".join(found.blocked)
            raise reach.Unreachable(f"{lines}\n{reach.advice()}")
        here = any(map(reach.is_here, found.names))  # else there never is a rank here
        asked = tuple(found.names) if here else ()
        return dataclasses.replace(place, variables=found.variables(), asked=asked)

    def _without(self, gone):
        counts = reach.counts_of(self._all.hosts, self._all.hostfile)
        each = max(1, self._all.ranks // len(self._names))
        left = {name: count or each for name, count in counts.items() if name not in gone}
        ranks = min(self._all.ranks, sum(left.values()))
        listed = ",".join(f"{name}:{count}" for name, count in left.items())
        return Place(ranks, listed, "", {})


def _ranks(mpirun):
    """The processes that mpirun has started here, but for those that reach other hosts."""
    found = []
    for children in Path(f"/proc/{mpirun}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                name = Path(f"/proc/{child}/comm").read_text().strip()
                found += [child] if name not in ("ssh", "rsh") else []
    return found


def _answers(name):
    try:
        with reach.Host(name) as host:
            host.answer("time")
        return True
    except reach.Unreachable:
        return False


def _say(text):
    print(f"rannc run: {text}", file=sys.stderr, flush=True)
