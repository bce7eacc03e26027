"""Sections 6 to 8 of docs/planner-files.md: the memory of a plan, for `arithmetic.Judge`."""

from benchmarks.planner.arithmetic_parts import StageVerdict, cost_at, group_order

# Two moments that differ by rounding only are one, the first.
MORE = 1 + 1e-9


class MemoryAccount:
    """Methods that look at a plan, as the judge has parsed it."""

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
