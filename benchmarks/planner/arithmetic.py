"""Time and memory of a plan, straight from sections 5 to 7 of docs/planner-files.md.

An independent second opinion on `pyrannc.evaluate`: plain Python on the parsed files, written from
that page alone, made to be read next to it. Slow, and it shares no code with anything.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import ceil

DEFAULT_REQUEST = {
    "gradient_bytes_per_param_byte": 1.0,
    "optimizer_bytes_per_param_byte": 2.0,
    "memory_margin": 0.0,
    "schedules": ["gpipe", "1f1b"],
    "max_interleave": 1,
    "recompute": "auto",
    "reduction_buckets": 1,
    "force": {},
    "master_bytes_per_param_byte": 0.0,
    "shard_optimizer": False,
}
# Two moments that differ by rounding only are one, the first.
MORE = 1 + 1e-9


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


class Judge:
    def __init__(self, graph, cluster, request, plan):
        self.graph = Graph(graph)
        self.cluster = cluster
        self.request = {**DEFAULT_REQUEST, **request}
        self.plan = plan
        self.schedule = plan["schedule"]
        self.m = plan["micro_batches"]
        self.batch = request["global_batch"]
        self.ranks = [stage["ranks"] for stage in plan["stages"]]
        self.count = len(plan["stages"])
        self.groups = self.count // plan.get("interleave", 1)
        self.stage_of = {
            node: s for s, stage in enumerate(plan["stages"]) for node in stage["nodes"]
        }
        self.recompute = [stage["recompute"] for stage in plan["stages"]]
        self.segment_of = {  # whole stages are one segment
            node: (s, k)
            for s, stage in enumerate(plan["stages"])
            for k, segment in enumerate(
                [stage["nodes"]] if stage["recompute"] is True else stage["recompute"] or []
            )
            for node in segment
        }

    def host(self, rank):
        listed = self.cluster.get("host_of_rank")
        return listed[rank] if listed else rank // self.cluster["devices_per_host"]

    def speed(self, host):
        listed = self.cluster.get("host")
        return listed[host].get("speed", 1) if listed else 1

    # Section 4: what valid means.

    def problems(self):
        found = []
        listed = [node for stage in self.plan["stages"] for node in stage["nodes"]]
        if sorted(listed) != sorted(self.graph.nodes):
            return ["not every node is in exactly one stage"]
        for name, users in self.graph.uses.items():
            producer = self.graph.values[name].producer
            for user in users:
                if producer and self.stage_of[producer] > self.stage_of[user]:
                    found.append(f"{name} goes back to {user}")
        by_group = {}
        for node in self.graph.nodes.values():
            if node.get("group"):
                by_group.setdefault(node["group"], set()).add(self.stage_of[node["name"]])
        found += [f"group {g} is cut" for g, stages in by_group.items() if len(stages) > 1]

        listed = self.cluster.get("host_of_rank")
        world = len(listed or []) or self.cluster["hosts"] * self.cluster["devices_per_host"]
        for s, ranks in enumerate(self.ranks):
            if not ranks or len(set(ranks)) < len(ranks):
                found.append(f"ranks of stage {s} repeat or are none")
            if any(not 0 <= rank < world for rank in ranks):
                found.append(f"a rank of stage {s} is out of range")
            if self.m * len(ranks) > self.batch:
                found.append(f"a replica of stage {s} gets no row")
            for t in range(s):
                same_group = self.groups < self.count and s % self.groups == t % self.groups
                if same_group and self.ranks[t] != ranks:
                    found.append(f"stages {t} and {s} share a group, but not their ranks")
                if not same_group and set(self.ranks[t]) & set(ranks):
                    found.append(f"stages {t} and {s} share ranks")
        return found + self.forbidden()

    def forbidden(self):
        """Choices that the request does not allow."""
        request, interleave = self.request, self.plan.get("interleave", 1)
        found = []
        powers = [2**k for k in range(self.batch.bit_length())]
        if self.m not in request.get("micro_batches", powers):
            found.append(f"{self.m} micro-batches")
        if self.schedule not in request["schedules"]:
            found.append(self.schedule)
        if (self.schedule == "interleaved") != (interleave > 1):
            found.append(f"{self.schedule} with interleave {interleave}")
        if interleave > 1:
            if interleave > request["max_interleave"]:
                found.append(f"interleave {interleave}")
            if self.count % interleave or self.groups < 2 or self.m % self.groups:
                found.append("interleaved stages or micro-batches do not divide")
        if request["recompute"] == "never" and any(self.recompute):
            found.append("recompute")
        if request["recompute"] == "always" and not all(self.recompute):
            found.append("no recompute")
        before = request["recompute"] == "auto" and request["version"] < 3
        whole = request["recompute"] == "stage" or before
        if whole and any(type(r) is list and r for r in self.recompute):
            found.append("segments")
        if request["recompute"] == "segments" and True in self.recompute:
            found.append("a whole stage")
        force = request["force"]
        chosen = {
            "stages": self.count,
            "micro_batches": self.m,
            "schedule": self.schedule,
            "interleave": interleave,
            "replicas": [len(ranks) for ranks in self.ranks],
        }
        return found + [
            f"{key} is forced to {force[key]}" for key in force if force[key] != chosen[key]
        ]

    # Section 5: time.

    def rows(self, s):
        return ceil(Fraction(self.batch, self.m * len(self.ranks[s])))

    def cost(self, nodes, key, rows):
        return sum(self.graph.cost(node, key, rows) for node in nodes)

    def time(self, s, direction, nodes=None):
        """The device's or the host's time for the stage, whichever is longer, on its slowest."""
        nodes = self.plan["stages"][s]["nodes"] if nodes is None else nodes
        b = self.rows(s)
        longer = max(self.cost(nodes, f"{direction}{end}", b) for end in ("_ns", "_host_ns"))
        return max(longer / self.speed(self.host(rank)) for rank in self.ranks[s])

    def backward_ns(self, s):
        again = [node for node in self.plan["stages"][s]["nodes"] if node in self.segment_of]
        return self.time(s, "backward") + self.time(s, "forward", again)

    def crossing(self, s, t):
        """Values produced in s and used in t."""
        return [
            self.graph.values[name]
            for name, users in self.graph.uses.items()
            if self.graph.values[name].producer
            and self.stage_of[self.graph.values[name].producer] == s
            and any(self.stage_of[user] == t for user in users)
        ]

    def transfer_ns(self, senders, receivers, values):
        big_m = ceil(Fraction(self.batch, self.m))
        per_row = sum(value.per_row for value in values)
        fixed = sum(value.fixed for value in values)
        sums = {}  # (inside or between, sent or received, device or host) -> bytes
        kinds = set()
        for i, a in enumerate(senders):
            for j, b in enumerate(receivers):
                low = max(Fraction(i, len(senders)), Fraction(j, len(receivers)))
                high = min(Fraction(i + 1, len(senders)), Fraction(j + 1, len(receivers)))
                if high <= low or a == b:
                    continue
                size = float(high - low) * big_m * per_row + fixed
                kind = "inside" if self.host(a) == self.host(b) else "between"
                kinds.add(kind)
                keys = [(kind, "sent", a), (kind, "received", b)]
                if kind == "between":
                    keys += [("host", "sent", self.host(a)), ("host", "received", self.host(b))]
                for key in keys:
                    sums[key] = sums.get(key, 0.0) + size

        def largest(kind):
            return max(size for key, size in sums.items() if key[0] == kind)

        times = [0.0]
        if "inside" in kinds:
            link = self.cluster["intra_host"]
            seconds = largest("inside") / link["bandwidth_bytes_per_s"]
            times.append(link["latency_ns"] + 1e9 * seconds)
        if "between" in kinds:
            link = self.cluster["inter_host"]
            bandwidth = link["bandwidth_bytes_per_s"]
            cards = link.get("links_per_host", 1)
            seconds = max(largest("between") / bandwidth, largest("host") / (cards * bandwidth))
            times.append(link["latency_ns"] + 1e9 * seconds)
        return max(times)

    def simulate(self):
        """End of every action: (stage, micro-batch, is forward) -> ns."""
        forward = [self.time(s, "forward") for s in range(self.count)]
        backward = [self.backward_ns(s) for s in range(self.count)]
        transfers = {}  # (from, to, is forward) -> ns
        for s in range(self.count):
            for t in range(s + 1, self.count):
                values = self.crossing(s, t)
                if values:
                    transfers[s, t, True] = self.transfer_ns(self.ranks[s], self.ranks[t], values)
                grads = [value for value in values if value.grad]
                if grads:
                    transfers[t, s, False] = self.transfer_ns(self.ranks[t], self.ranks[s], grads)
        waiting = [
            group_order(self.schedule, self.count, self.groups, self.m, d)
            for d in range(self.groups)
        ]
        clock = [0.0] * self.groups
        ends, arrivals, channel = {}, {}, {}
        while any(waiting):
            moved = False
            for d, order in enumerate(waiting):
                if not order:
                    continue
                s, k, is_forward = order[0]
                needed = [(key, k) for key in transfers if key[1] == s and key[2] == is_forward]
                if any(key not in arrivals for key in needed):
                    continue
                if not is_forward and (s, k, True) not in ends:
                    continue
                order.pop(0)
                start = max([clock[d], *(arrivals[key] for key in needed)])
                if not is_forward:
                    start = max(start, ends[s, k, True])
                end = clock[d] = start + (forward if is_forward else backward)[s]
                ends[s, k, is_forward] = end
                for key, duration in transfers.items():
                    if key[0] == s and key[2] == is_forward:
                        channel[key] = max(end, channel.get(key, 0.0)) + duration
                        arrivals[key, k] = channel[key]
                moved = True
            if not moved:
                raise RuntimeError("the schedule waits for itself")
        return ends

    def gradient_bytes(self, param):
        param = self.graph.params[param]
        factor = self.request["gradient_bytes_per_param_byte"]
        return param["bytes"] * factor if param.get("trainable", True) else 0.0

    def reductions(self):
        """Own bytes of each stage, and [(stages, bytes)] of the tied sets."""
        users = {}
        for node in self.graph.nodes.values():
            for param in node.get("params", []):
                users.setdefault(param, set()).add(self.stage_of[node["name"]])
        own, tied = [0.0] * self.count, {}
        for param, stages in users.items():
            if len(stages) == 1:
                own[min(stages)] += self.gradient_bytes(param)
            else:
                key = tuple(sorted(stages))
                tied[key] = tied.get(key, 0.0) + self.gradient_bytes(param)
        return own, sorted((stages, size) for stages, size in tied.items() if size > 0)

    def ring_ns(self, ranks, size, spanning):
        r = len(ranks)
        if r == 1:
            return 0.0
        hosts = {self.host(rank) for rank in ranks}
        if len(hosts) == 1:
            link, share = self.cluster["intra_host"], 1.0
        else:
            link = self.cluster["inter_host"]
            busiest = max(sum(any(self.host(q) == h for q in g) for g in spanning) for h in hosts)
            share = max(1.0, busiest / link.get("links_per_host", 1))
        seconds = size / (link["bandwidth_bytes_per_s"] / share)
        return 2 * (r - 1) / r * seconds * 1e9 + 2 * (r - 1) * link["latency_ns"]

    def run(self):
        verdict = Verdict(problems=self.problems())
        ends = self.simulate()
        own, tied = self.reductions()
        groups = {frozenset(self.ranks[s]) for s in range(self.count) if own[s] > 0}
        unions = {key: frozenset().union(*(self.ranks[s] for s in key)) for key, _ in tied}
        groups |= set(unions.values())
        spanning = [g for g in groups if len({self.host(rank) for rank in g}) > 1]

        last = [max(ends[s, k, False] for k in range(self.m)) for s in range(self.count)]
        free, group_free = list(last), {}
        reduce_ns = [0.0] * self.count
        n = self.request["reduction_buckets"]
        for s in sorted(range(self.count), key=lambda s: (last[s], s)):
            if own[s] == 0:
                continue
            now = group_free.get(s % self.groups, 0.0)
            ring = self.ring_ns(self.ranks[s], own[s] / n, spanning)
            for k in range(1, n + 1):
                ready = last[s] - self.time(s, "backward") * (1 - k / n)
                now = max(now, ready) + ring
            reduce_ns[s] = n * ring
            group_free[s % self.groups] = now
            free[s] = max(now, last[s])
        for key, size in tied:
            end = max(free[s] for s in key) + self.ring_ns(sorted(unions[key]), size, spanning)
            for s in key:
                free[s] = end
        verdict.iteration_ns = max([*ends.values(), *free])
        ranks = {rank for ranks in self.ranks for rank in ranks}
        price = self.cluster.get("price_per_device_hour", 0.0)
        verdict.iteration_price = price * len(ranks) * verdict.iteration_ns / 3.6e12
        for s in range(self.count):
            stage = self.memory(s)
            stage.reduce_ns = reduce_ns[s]
            verdict.stages.append(stage)
        self.peaks(verdict)
        return verdict

    # Section 6: memory.

    def optimizer_bytes(self, param):
        param = self.graph.params[param]
        if not param.get("trainable", True):
            return 0.0
        factor = self.request["optimizer_bytes_per_param_byte"]
        masters = self.request["master_bytes_per_param_byte"] * param["bytes"]
        return param.get("optimizer_bytes", factor * param["bytes"]) + masters

    def params_of(self, stages):
        nodes = [node for s in stages for node in self.plan["stages"][s]["nodes"]]
        return {param for node in nodes for param in self.graph.nodes[node].get("params", [])}

    def params_bytes(self, stages):
        params = self.params_of(stages)
        shares = len(self.ranks[min(stages)]) if self.request["shard_optimizer"] else 1
        return (
            sum(self.graph.params[param]["bytes"] for param in params),
            sum(self.gradient_bytes(param) for param in params),
            sum(self.optimizer_bytes(param) for param in params) / shares,
        )

    def taken(self, s):
        """Of each value that segments of the stage take its bytes, and the first that does."""
        found = []
        for name, users in self.graph.uses.items():
            value = self.graph.values[name]
            segments = {self.segment_of.get(user) for user in users if self.stage_of[user] == s}
            segments -= {None, self.segment_of.get(value.producer)}
            if segments:
                found.append((value.bytes_at(self.rows(s)), min(segments)))
        return found

    def kept(self, s):
        """What a micro-batch keeps, and what the largest segment saves; then in + out."""
        b = self.rows(s)
        crossing, again = 0.0, {}
        for name, users in self.graph.uses.items():
            value = self.graph.values[name]
            if value.producer:
                stages = {self.stage_of[user] for user in users} - {self.stage_of[value.producer]}
                leaves = self.stage_of[value.producer] == s and stages
                crossing += value.bytes_at(b) if leaves or s in stages else 0.0
        for node in self.plan["stages"][s]["nodes"]:
            segment = self.segment_of.get(node)
            again[segment] = again.get(segment, 0.0) + self.graph.cost(node, "saved_bytes", b)
        kept = again.pop(None, 0.0) + sum(size for size, _ in self.taken(s))
        return kept, max(again.values(), default=0.0), crossing

    def in_flight(self, d):
        """Counts by stage along the order of group d."""
        count, line = {}, []
        for s, _, is_forward in group_order(self.schedule, self.count, self.groups, self.m, d):
            count[s] = count.get(s, 0) + (1 if is_forward else -1)
            line.append(dict(count))
        return line

    def memory(self, s):
        stage = StageVerdict(rows=self.rows(s))
        stage.forward_ns = self.time(s, "forward")
        stage.backward_ns = self.backward_ns(s)
        stage.param_bytes, stage.gradient_bytes, stage.optimizer_bytes = self.params_bytes([s])
        kept, again, crossing = self.kept(s)
        most = max(counts.get(s, 0) for counts in self.in_flight(s % self.groups))
        stage.activation_bytes = most * kept + again
        stage.buffer_bytes = 2 * crossing
        stage.workspace_bytes = max(
            self.graph.cost(node, "workspace_bytes", self.rows(s))
            for node in self.plan["stages"][s]["nodes"]
        )
        return stage

    def peaks(self, verdict):
        limit = self.cluster["device_memory_bytes"] * (1 - self.request["memory_margin"])
        if self.graph.version == 2:
            for d in range(self.groups):
                self.fullest_moment(d, verdict)
            for s, stage in enumerate(verdict.stages):
                if stage.peak_bytes > limit:
                    verdict.problems.append(f"stage {s} needs {stage.peak_bytes:.0f} bytes")
            return
        for d in range(self.groups):
            mine = range(d, self.count, self.groups)
            kept = {s: self.kept(s) for s in mine}
            again = max(kept[s][1] for s in mine)
            activations = max(
                sum(k * kept[s][0] for s, k in counts.items()) for counts in self.in_flight(d)
            )
            peak = sum(self.params_bytes(mine)) + activations + again
            peak += sum(verdict.stages[s].buffer_bytes for s in mine)
            peak += max(verdict.stages[s].workspace_bytes for s in mine)
            for s in mine:
                verdict.stages[s].peak_bytes = peak
                if peak > limit:
                    verdict.problems.append(f"stage {s} needs {peak:.0f} bytes of {limit:.0f}")

    # Section 7: memory by version 2.

    def backward(self, s):
        """(is the first one) -> bytes of each kind at the fullest moment of a backward; and what a
        micro-batch keeps, what comes in, and goes out, as values and as gradients."""
        b = self.rows(s)
        nodes = [name for name in self.graph.nodes if self.stage_of[name] == s]
        place = {name: i for i, name in enumerate(nodes)}
        waits = [0.0] * len(nodes)
        moved = {"in": 0.0, "out": 0.0, "in gradients": 0.0, "out gradients": 0.0}
        for name, users in self.graph.uses.items():
            value = self.graph.values[name]
            if not value.producer:
                continue
            made_here = value.producer in place
            used_here = [place[user] for user in users if user in place]
            leaves = made_here and len(used_here) < len(users)
            if not made_here and not used_here:
                continue
            size = value.bytes_at(b)
            for kind, moves in (("in", not made_here), ("out", leaves)):
                moved[kind] += size if moves else 0.0
                moved[f"{kind} gradients"] += size if moves and value.grad else 0.0
            if value.grad:
                begin = place[value.producer] + 1 if made_here else 0
                for i in range(begin, len(nodes) if leaves else max(used_here)):
                    waits[i] += size
        own = {i: self.segment_of.get(name) for name, i in place.items()}
        # A number of bytes, from which node on they are there, and of which segment; None: kept.
        held = [(self.graph.cost(n, "saved_bytes", b), i, own[i]) for n, i in place.items()]
        for storage in self.graph.saved:
            size = cost_at(storage["bytes"], self.graph.rows, b)
            savers = [place[name] for name in storage["nodes"] if name in place]
            segments = {own[i] for i in savers}
            for segment in {None} if None in segments else segments:
                first = min(i for i in savers if segment is None or own[i] == segment)
                held.append((size, first, segment))
        end = {segment: max(i for i in own if own[i] == segment) for segment in own.values()}
        held += [(size, end[segment] + 1, None) for size, segment in self.taken(s)]
        elsewhere = self.params_of(range(s + self.groups, self.count, self.groups))
        moments = {True: [], False: []}
        saved = [
            sum(size for size, first, of in held if first <= i and of in (None, own[i]))
            for i in range(len(nodes))
        ]
        for i in reversed(range(len(nodes))):
            node = self.graph.nodes[nodes[i]]
            behind = nodes[i:] if node.get("adds_in_place", False) else nodes[i + 1 :]
            gradients = self.gradients(behind, elsewhere)
            work = self.graph.cost(nodes[i], "workspace_bytes", b) + waits[i]
            for is_first in (True, False):
                moments[is_first].append((gradients if is_first else 0.0, saved[i], 0.0, work))
        kept = sum(size for size, _, segment in held if segment is None)
        return {is_first: fullest(found) for is_first, found in moments.items()}, kept, moved

    def gradients(self, nodes, elsewhere):
        params = {p for name in nodes for p in self.graph.nodes[name].get("params", [])}
        return sum(self.gradient_bytes(param) for param in params - elsewhere)

    def fullest_moment(self, d, verdict):
        """Of the ranks of group d, along their order."""
        mine = range(d, self.count, self.groups)
        figures = {s: self.backward(s) for s in mine}
        params, _, optimizer = self.params_bytes(mine)
        order = group_order(self.schedule, self.count, self.groups, self.m, d)
        counts, made = dict.fromkeys(mine, 0), dict.fromkeys(mine, 0.0)
        best, sent = -1.0, []  # a rank may hold nothing
        until_gone = 1
        if self.schedule == "interleaved":
            until_gone = 2 if self.groups == 2 else 3

        def look(s, more, to_come):
            nonlocal best
            now = {t: [made[t], counts[t] * figures[t][1], 0.0, 0.0] for t in mine}
            now[s] = [a + b for a, b in zip(now[s], more, strict=True)]
            for t, size in sent:
                now[t][2] += size
            if to_come:
                t, _, is_forward = to_come[0]
                now[t][2] += figures[t][2]["in" if is_forward else "out gradients"]
            held = params + optimizer + sum(map(sum, now.values()))
            if held <= best * MORE:
                return
            best = held
            for t in mine:
                stage = verdict.stages[t]
                stage.gradient_bytes, stage.activation_bytes = now[t][:2]
                stage.buffer_bytes, stage.workspace_bytes = now[t][2:]

        for k, (s, _, is_forward) in enumerate(order):
            backwards, _, moved = figures[s]
            to_come = order[k + 1 : k + 2]
            counts[s] += 1 if is_forward else -1
            is_first = (s, False) not in {(t, forward) for t, _, forward in order[:k]}
            look(s, (0.0,) * 4 if is_forward else backwards[is_first], to_come)
            if not is_forward:
                made[s] = self.gradients(
                    self.plan["stages"][s]["nodes"],
                    self.params_of(range(s + self.groups, self.count, self.groups)),
                )
            sent = [*sent, (s, moved["out" if is_forward else "in gradients"])][-until_gone:]
            look(s, (0.0,) * 4, to_come)
        for s in mine:
            verdict.stages[s].peak_bytes = best


def fullest(moments):
    """The first that no other exceeds."""
    best = moments[0]
    for moment in moments[1:]:
        if sum(moment) > sum(best) * MORE:
            best = moment
    return best


def evaluate(graph, cluster, request, plan):
    """The parsed files as dicts and lists, in the formats of docs/planner-files.md."""
    return Judge(graph, cluster, request, plan).run()
