"""What the baselines cut: a graph as a sequence of units (layers), and costs of sets of units."""

import re
from math import ceil

import numpy as np


def at_rows(costs, points, rows):
    """The page's interpolation, for an array of [nodes, points]."""
    if len(points) == 1:
        return costs[:, 0] * rows / points[0]
    right = 1
    while right + 1 < len(points) and rows > points[right]:
        right += 1
    x0, x1 = points[right - 1], points[right]
    y0, y1 = costs[:, right - 1], costs[:, right]
    return np.maximum(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


def layer_of(name):
    """'encoder.layer.3' of 'encoder.layer.3.attn.q'; the first component where no number is."""
    found = re.match(r"(.*?\.)?\d+(?=\.|$)", name)
    return (found[0], True) if found else (name.split(".")[0], False)


class Units:
    """Consecutive nodes, in the order of the file, with the same layer; never through a group.

    With `limit`, the cheapest neighbours are merged until there are at most so many.
    """

    def __init__(self, graph, limit=None):
        nodes = graph["nodes"]
        self.names = [node["name"] for node in nodes]
        self.rows = graph["rows"]
        zeros = [0.0] * len(self.rows)
        self.costs = {
            key: np.array([node.get(key) or zeros for node in nodes], dtype=float)
            for key in ("forward_ns", "backward_ns", "saved_bytes", "workspace_bytes")
        }
        starts, layers = self._starts(nodes)
        if limit is not None:
            starts, layers = self._merged(starts, layers, limit)
        self.starts, self.layers = starts, layers
        self.count = len(starts)
        unit_of = np.zeros(len(nodes), dtype=int)
        for unit, start in enumerate(starts):
            unit_of[start:] = unit
        self._values(graph, unit_of)

    def _starts(self, nodes):
        last = {}
        for k, node in enumerate(nodes):
            if node.get("group"):
                last[node["group"]] = k
        starts, layers, seen, until = [], [], set(), -1
        for k, node in enumerate(nodes):
            layer, numbered = layer_of(node["name"])
            if k == 0 or (k > until and layer not in seen):
                starts.append(k)
                layers.append(layer if numbered else None)
            seen.add(layer)
            until = max(until, last.get(node.get("group"), -1))
        return starts, layers

    def _merged(self, starts, layers, limit):
        time = np.add.reduceat(
            (self.costs["forward_ns"] + self.costs["backward_ns"])[:, -1], starts
        ).tolist()
        starts, layers = list(starts), list(layers)
        while len(starts) > limit:
            k = min(range(len(starts) - 1), key=lambda k: time[k] + time[k + 1])
            time[k] += time.pop(k + 1)
            del starts[k + 1]
            after = layers.pop(k + 1)
            layers[k] = layers[k] or after
        return starts, layers

    def _values(self, graph, unit_of):
        index = {name: k for k, name in enumerate(self.names)}
        readers = {}
        for k, node in enumerate(graph["nodes"]):
            for read in node["inputs"]:
                name = f"{read}:0" if read in index else read
                readers.setdefault(name, set()).add(int(unit_of[k]))
        producers, sizes, users = [], [], []
        given = {value["name"]: value for value in graph.get("inputs", [])}
        for name, units in readers.items():
            if name.removesuffix(":0") in given:
                producer, size = -1, given[name.removesuffix(":0")]
            else:
                node, output = name.rsplit(":", 1)
                producer = int(unit_of[index[node]])
                size = graph["nodes"][index[node]]["outputs"][int(output)]
                if units == {producer}:
                    continue
            producers.append(producer)
            sizes.append((size.get("bytes_per_row", 0), size.get("fixed_bytes", 0)))
            row = np.zeros(self.count, dtype=np.float32)
            row[list(units)] = 1
            users.append(row)
        self.producers = np.array(producers, dtype=int)
        self.sizes = np.array(sizes, dtype=float).reshape(-1, 2)
        self.users = np.array(users, dtype=np.float32).reshape(-1, self.count)
        self.params = {param["id"]: k for k, param in enumerate(graph.get("params", []))}
        self.param_users = np.zeros((len(self.params), self.count), dtype=np.float32)
        for k, node in enumerate(graph["nodes"]):
            for param in node.get("params", []):
                self.param_users[self.params[param], unit_of[k]] = 1
        self.param_list = graph.get("params", [])

    def nodes(self, members):
        """Names of the nodes of the units `members`."""
        ends = [*self.starts[1:], len(self.names)]
        return [name for u in members for name in self.names[self.starts[u] : ends[u]]]

    def sources(self):
        """[to, from]: unit `to` reads a value of unit `from`."""
        edges = np.zeros((self.count, self.count), dtype=bool)
        for producer, users in zip(self.producers, self.users, strict=True):
            if producer >= 0:
                edges[users > 0, producer] = True
        np.fill_diagonal(edges, False)
        return edges


class SetCosts:
    """Section 6 of docs/planner-files.md, and the compute times of section 5, for sets of units."""

    def __init__(self, units, members, request):
        """`members`: [sets, units] of 0 and 1."""
        self.units, self.members, self.request = units, members, request
        self.batch = request["global_batch"]
        inside = members.astype(np.float32)
        used = inside @ units.users.T > 0
        everywhere = units.users.sum(axis=1)
        leaves = inside @ units.users.T < everywhere
        produced = np.zeros_like(used)
        own = units.producers >= 0
        produced[:, own] = members[:, units.producers[own]] > 0
        self.given = (used & ~own) @ units.sizes
        self.entering = (used & own & ~produced) @ units.sizes
        self.leaving = (produced & leaves) @ units.sizes
        gradient = request.get("gradient_bytes_per_param_byte", 1)
        optimizer = request.get("optimizer_bytes_per_param_byte", 2)
        sizes, gradients = np.zeros(len(units.param_list)), np.zeros(len(units.param_list))
        for k, param in enumerate(units.param_list):
            sizes[k] = param["bytes"]
            if param.get("trainable", True):
                gradients[k] = gradient * param["bytes"]
                sizes[k] += gradients[k]
                sizes[k] += param.get("optimizer_bytes", optimizer * param["bytes"])
        held = inside @ units.param_users.T > 0
        self.held_bytes = held @ sizes
        self.gradient_bytes = held @ gradients
        self._known = {}

    def rows(self, m, replicas):
        return ceil(self.batch / (m * replicas))

    def at(self, rows):
        if rows in self._known:
            return self._known[rows]
        units, result = self.units, {}
        for key in ("forward_ns", "backward_ns", "saved_bytes"):
            by_unit = np.add.reduceat(at_rows(units.costs[key], units.rows, rows), units.starts)
            result[key] = self.members @ by_unit
        most = np.maximum.reduceat(
            at_rows(units.costs["workspace_bytes"], units.rows, rows), units.starts
        )
        result["workspace_bytes"] = np.max(self.members * most, axis=1)
        for key in ("given", "entering", "leaving"):
            per_row, fixed = getattr(self, key).T
            result[key] = per_row * rows + fixed
        self._known[rows] = result
        return result

    def peak(self, rows, in_flight, recompute):
        """Bytes of one rank, for all sets (or with `in_flight` one for each)."""
        c = self.at(rows)
        kept = c["saved_bytes"] * in_flight
        if recompute:
            kept = in_flight * (c["entering"] + c["given"]) + c["saved_bytes"]
        buffers = 2 * (c["entering"] + c["leaving"])
        return self.held_bytes + kept + buffers + c["workspace_bytes"]


def limit_of(cluster, request):
    return cluster["device_memory_bytes"] * (1 - request.get("memory_margin", 0))


def all_ranges(count):
    """Members of [i, j) for all i < j, and the index of each: table[i, j]."""
    table = np.full((count + 1, count + 1), -1)
    rows = []
    for i in range(count):
        for j in range(i + 1, count + 1):
            table[i, j] = len(rows)
            row = np.zeros(count)
            row[i:j] = 1
            rows.append(row)
    return np.array(rows), table
