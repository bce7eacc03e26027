"""What both halves of the second evaluator read: values, costs and orders of the parsed files."""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class StageVerdict:
    rows: int = 0
    forward_ns: float = 0.0
    backward_ns: float = 0.0
    reduce_ns: float = 0.0
    param_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0
    buffer_bytes: float = 0.0
    workspace_bytes: float = 0.0
    peak_bytes: float = 0.0


@dataclass
class Verdict:
    problems: list[str] = field(default_factory=list)
    iteration_ns: float = 0.0
    iteration_price: float = 0.0
    stages: list[StageVerdict] = field(default_factory=list)


@dataclass(frozen=True)
class Value:
    """An output of a node, or a graph input (`producer` is then empty)."""

    name: str
    producer: str
    per_row: float
    fixed: float
    grad: bool

    def bytes_at(self, rows):
        return self.per_row * rows + self.fixed


def cost_at(costs, points, rows):
    """Linear between neighbours, the nearest segment extended, never below 0."""
    if len(points) == 1:
        return costs[0] * rows / points[0]
    segments = list(pairwise(zip(points, costs, strict=True)))
    (x0, y0), (x1, y1) = next((s for s in segments if rows <= s[1][0]), segments[-1])
    return max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


class Graph:
    def __init__(self, graph):
        self.version = graph["version"]
        self.saved = graph.get("saved", [])
        self.rows = graph["rows"]
        self.nodes = {node["name"]: node for node in graph["nodes"]}
        self.params = {param["id"]: param for param in graph.get("params", [])}
        self.values = {}
        for value in graph.get("inputs", []):
            self._add(value["name"], "", value, grad=False)
        for node in graph["nodes"]:
            for k, output in enumerate(node["outputs"]):
                self._add(f"{node['name']}:{k}", node["name"], output, output.get("grad", True))
        self.uses = {}  # value name -> names of its users
        for node in graph["nodes"]:
            for read in node["inputs"]:
                name = self.value_name(read)
                self.uses.setdefault(name, []).append(node["name"])

    def _add(self, name, producer, size, grad):
        self.values[name] = Value(
            name, producer, size.get("bytes_per_row", 0), size.get("fixed_bytes", 0), grad
        )

    def value_name(self, read):
        if read in self.nodes:
            return f"{read}:0"
        if read in self.values:
            return read
        name, _, index = read.rpartition(":")  # "x:0" of a graph input
        if index == "0" and name in self.values:
            return name
        raise KeyError(f"unknown value {read}")

    def cost(self, node, key, rows):
        costs = self.nodes[node].get(key)
        return 0.0 if costs is None else cost_at(costs, self.rows, rows)


def group_order(schedule, stages, groups, m, d):
    """What group d runs: (stage, micro-batch, is forward)."""
    if schedule == "interleaved":
        p, v = groups, stages // groups

        def action(n, forward):
            chunk = (n // p) % v
            return ((chunk if forward else v - 1 - chunk) * p + d, n // (p * v) * p + n % p)

        count, w = v * m, min(v * m, 2 * (p - 1 - d) + (v - 1) * p)
    else:

        def action(n, forward):
            return d, n

        count, w = m, m if schedule == "gpipe" else min(m, stages - 1 - d)
    order = [(*action(n, True), True) for n in range(w)]
    for n in range(count - w):
        order += [(*action(w + n, True), True), (*action(n, False), False)]
    return order + [(*action(n, False), False) for n in range(count - w, count)]
