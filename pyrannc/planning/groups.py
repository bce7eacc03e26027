"""Ranks that compute layers together: what one of them does, and how many they are best."""

import dataclasses

from pyrannc import _C, log
from pyrannc.errors import ConfigError, InfeasibleError, PlanError
from pyrannc.ranks import on_rank

#: Groups are taken where the predicted step gains so much.
#: tuned by: a safety margin above what the predictions of two plans are off by.
#: without it: a plan with groups is taken for a gain that no step shows.
LEAST_GAIN = 0.05


@dataclasses.dataclass(frozen=True)
class Group:
    """What the planner sees of groups of ranks.

    Attributes:
        ways: Ranks of a group.
        sharded: ``_C.ir.ShardedGraph``, what the first of them computes: none has more.
        graph: The whole graph with the sizes of that.
        devices: ``_C.cost.Cluster``, each group one of them.
        link: ``_C.cost.Link`` between the ranks of a group.
        sequence_parallel: Between products each of them has a part of the sequence.
    """

    ways: int
    sharded: object
    graph: object
    devices: object
    link: object
    sequence_parallel: bool = False

    def collective_ns(self, rows) -> float:
        """What its collectives take for so many rows, forward and backward."""
        return _C.cost.collective_ns(self.sharded.graph, self.ways, rows, self.link)

    def of_ranks(self, plan, whole):
        """``plan``, of groups, as one of their ranks; ``whole``: the graph."""
        per_byte = 1e9 / self.link.bandwidth_bytes_per_s
        given = self.ways, self.sharded.factors, self.link.latency_ns, per_byte
        return _C.plan.of_groups(plan, whole, *given, self.sequence_parallel)


def of(graph, ways, devices, sequence_parallel=False) -> Group:
    """Those of ``ways`` ranks each; ``devices``: ``_C.cost.Cluster`` of the ranks."""
    devices, link = _C.cost.of_groups(devices, ways)
    sharded = _C.ir.shard(graph, ways, 0, sequence=sequence_parallel)
    sizes = _C.ir.with_sizes_of(graph, sharded)
    return Group(ways, sharded, sizes, devices, link, sequence_parallel)


def held(graph, group=None) -> list:
    """Each parameter, buffer and constant of ``graph``, in its order, and the share of it that a
    rank holds: its bytes and those of the whole."""
    return _C.ir.held_values(graph, group.graph if group else graph)


class Choice:
    """How many ranks compute layers together, where the planner decides.

    Args:
        world: The communicator of the job.
        rows: Of all ranks together.
    """

    def __init__(self, world, rows):
        self._world, self._rows = world, rows
        self._found = {}  # by ways: ns of a step, or why there is no plan
        self._infeasible = None
        self._compute_ns = 0
        self.best = None  # what try_plan() was given for it

    def numbers(self) -> list[int]:
        """Ranks of a group that may be tried, besides one."""
        return [ways for ways in range(2, self._world.size + 1) if self._world.size % ways == 0]

    def try_plan(self, ways, what, find) -> None:
        """``find()``: a plan on rank 0. Collective; ``what`` becomes ``best`` where it is."""

        def step_ns():
            try:
                return find().step.ns
            except InfeasibleError as error:
                return str(error)
            except (ConfigError, PlanError) as error:  # such as more replicas than there are groups
                if ways == 1:
                    raise
                return str(error)

        ns = on_rank(0, self._world, step_ns)
        self._found[ways] = ns
        if isinstance(ns, str):
            self._infeasible = self._infeasible or ns
        elif self.best is None or ns < self._bar():
            self.best = ways, what

    def _bar(self):
        """Above which a step is not worth so many ranks more."""
        best = self._found[self.best[0]]
        return best * (1 - LEAST_GAIN) if self.best[0] == 1 else best

    def cannot_gain(self, group, operators) -> bool:
        """Whether the collectives alone leave no gain, so that nothing needs to be measured.

        Args:
            operators: ``_C.cost.CostTable`` of the whole graph.
        """
        if not group.sharded.parts:
            self._found[group.ways] = "nothing can be cut"
            return True
        if self.best is None:
            return False
        if not self._compute_ns:
            costs = [node[-1] for node in operators.node]
            self._compute_ns = sum(each.forward_ns + each.backward_ns for each in costs)
            self._compute_ns *= self._rows / operators.rows[-1]
        least = self._compute_ns / self._world.size
        least += group.collective_ns(self._rows) * group.ways / self._world.size
        if least < self._bar():
            return False
        self._found[group.ways] = f"at least {least / 1e6:.3g} ms"
        return True

    def refuse(self, ways, reason) -> None:
        self._found[ways] = reason

    def tell(self) -> None:
        """One line of the log, on rank 0.

        Raises:
            InfeasibleError: No number has a plan.
        """
        if self.best is None:
            raise InfeasibleError(
                f"{self._infeasible}\n  Groups of ranks that compute layers together "
                f'(tensor_parallel="auto") do not help: {self._in_words()}.'
            )
        if self._world.rank == 0:
            ways = self.best[0]
            taken = f"groups of {ways} ranks" if ways > 1 else "no groups"
            log.info("deploy", f"tensor_parallel: {taken}; a step takes with {self._in_words()}")

    def _in_words(self):
        told = []
        for ways, found in self._found.items():
            if not isinstance(found, str):
                text = f"{found / 1e6:.3g} ms"
            else:
                text = "too much memory" if ways == 1 or "fits" in found else found.splitlines()[0]
            told.append(f"{'none' if ways == 1 else ways}: {text}")
        return ", ".join(told)
