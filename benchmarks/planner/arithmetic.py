"""Time and memory of a plan, straight from sections 5 to 7 of docs/planner-files.md.

An independent second opinion on `pyrannc.evaluate`: plain Python on the parsed files, written from
that page alone, made to be read next to it. Slow, and it shares no code with anything.
"""

from fractions import Fraction
from math import ceil

from benchmarks.planner.arithmetic_memory import MemoryAccount
from benchmarks.planner.arithmetic_parts import Graph, Verdict, group_order

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


class Judge(MemoryAccount):
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


def evaluate(graph, cluster, request, plan):
    """The parsed files as dicts and lists, in the formats of docs/planner-files.md."""
    return Judge(graph, cluster, request, plan).run()
