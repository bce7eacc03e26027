"""Random small models as graphs, and random plans for them."""

import random

import borders
from graph_text import GraphText
from pipeline import layout

FEATURES, TOKENS = 4, 3

# Layouts of a value, and the operator with its arguments that leads from one to the next.
# The rows of "seq_flat" are spread over dimension 0: B*S and S*B are not the same.
FORMS = {
    "batch": (("B", TOKENS, FEATURES), "apart(0)"),
    "seq": ((TOKENS, "B", FEATURES), "apart(1)"),
    "seq_flat": ((f"{TOKENS}*B", FEATURES), f"apart(0, outer={TOKENS})"),
    "batch_flat": ((f"{TOKENS}*B", FEATURES), f"apart(0, inner={TOKENS})"),
}
STEPS = {
    ("batch", "seq"): ("aten::transpose.int", [0, 1]),
    ("seq", "batch"): ("aten::transpose.int", [0, 1]),
    ("seq", "seq_flat"): ("aten::reshape", [[f"{TOKENS}*B", FEATURES]]),
    ("seq_flat", "seq"): ("aten::reshape", [[TOKENS, "B", FEATURES]]),
    ("batch", "batch_flat"): ("aten::reshape", [[f"{TOKENS}*B", FEATURES]]),
    ("batch_flat", "batch"): ("aten::reshape", [["B", TOKENS, FEATURES]]),
}
LINE = ["seq_flat", "seq", "batch", "batch_flat"]  # each form is one step from its neighbours


class RandomGraph:
    """A random DAG: values in several layouts, skip connections, several inputs and outputs.

    With ``draws`` also dropout, of values with rows and of parameters.
    """

    def __init__(self, seed, draws=False):
        self._random = random.Random(seed)
        self._draws = draws
        self.graph = GraphText()
        self._values = [  # (form, value)
            (form, self.graph.input(f"x{i}", *FORMS[form], grad=self._random.random() < 0.5))
            for i, form in enumerate(
                self._random.choices(list(FORMS), k=self._random.randint(1, 3))
            )
        ]
        self._shared = self.graph.parameter("shared", (FEATURES, FEATURES))
        self._early_loss = None  # a scalar that crosses stages
        for index in range(self._random.randint(4, 14)):
            self._values.append(self._grow(f"m{index}"))
            if self._early_loss is None and self._random.random() < 0.1:
                self._early_loss = self.graph.mean(self._pick()[1])
        self.outputs = self._choose_outputs()

    def text(self):
        return self.graph.text(self.outputs)

    def _pick(self):
        # Mostly recent values, sometimes one from far back: a skip connection.
        recent = self._values[-3:] if self._random.random() < 0.7 else self._values
        return self._random.choice(recent)

    def _in_form(self, form, value, wanted):
        at, end = LINE.index(form), LINE.index(wanted)
        while at != end:
            step = 1 if end > at else -1
            op, arguments = STEPS[LINE[at], LINE[at + step]]
            at += step
            value = self.graph.call(op, [value, *arguments], *FORMS[LINE[at]])
        return value

    def _grow(self, name):
        form, value = self._pick()
        kinds = ["linear", "tied", "row_free", "tanh", "add", "mul", "norm", "view"]
        kind = self._random.choice(kinds + ["dropout", "noise", "row_free_dropout"] * self._draws)
        call = self.graph.call
        if kind == "linear":
            return form, self.graph.linear(value, name, FEATURES)
        if kind == "tied":
            return form, call("aten::linear", [value, self._shared, None], value.sizes, value.rows)
        if kind == "row_free":  # parameter arithmetic, which is cloned into the stage
            sizes = (FEATURES, FEATURES)
            weight = call("aten::mul.Tensor", [self._shared, self._shared], sizes, "none")
            return form, call("aten::linear", [value, weight, None], value.sizes, value.rows)
        if kind == "tanh":
            return form, call("aten::tanh", [value], value.sizes, value.rows)
        if kind == "dropout":
            return form, call("aten::dropout", [value, 0.4, True], value.sizes, value.rows)
        if kind == "noise":
            noise = call(
                "aten::rand_like", [value, None, None, None, False, None], value.sizes, value.rows
            )
            return form, call("aten::mul.Tensor", [value, noise], value.sizes, value.rows)
        if kind == "row_free_dropout":
            sizes = (FEATURES, FEATURES)
            weight = call("aten::dropout", [self._shared, 0.4, True], sizes, "none")
            return form, call("aten::linear", [value, weight, None], value.sizes, value.rows)
        if kind == "norm":
            scale = self.graph.parameter(f"{name}.weight", (FEATURES,))
            arguments = [value, [FEATURES], scale, None, 1e-5, True]
            return form, call("aten::layer_norm", arguments, value.sizes, value.rows)
        if kind == "view":
            wanted = self._random.choice(list(FORMS))
            return wanted, self._in_form(form, value, wanted)
        other = self._in_form(*self._pick(), form)
        if kind == "add":
            return form, call("aten::add.Tensor", [value, other, 1], value.sizes, value.rows)
        gate = call("aten::sigmoid", [other], value.sizes, value.rows)
        return form, call("aten::mul.Tensor", [value, gate], value.sizes, value.rows)

    def _choose_outputs(self):
        last = self._values[-1][1]
        outputs = []
        if self._random.random() < 0.7:
            outputs.append(self.graph.mean(last))
            if self._early_loss is not None:
                terms = [outputs.pop(), self._early_loss, 1]
                outputs.append(self.graph.call("aten::add.Tensor", terms, (), "mean"))
        if self._random.random() < 0.3:
            total = self.graph.call("aten::sum", [self._pick()[1], None], (), "sum")
            outputs.append(total)
        if self._random.random() < 0.5 or not outputs:
            outputs.append(last)
        if self._random.random() < 0.3:
            outputs.append(self._pick()[1])
        return outputs


def random_plan(node_names, ranks, seed, schedule="gpipe"):
    """A plan as the dictionary of its file: random cuts, replicas, micro-batches, recompute.

    Whatever the batch: it may have fewer rows than micro-batches. Interleaved plans need two ranks
    and, as 1F1B where the graph is too small for them, four nodes.
    """
    choose = random.Random(seed)
    nodes = len(node_names)
    if schedule == "interleaved" and nodes < 4:
        schedule = "1f1b"
    chunks = choose.randint(2, min(3, nodes // 2)) if schedule == "interleaved" else 1
    fewest = 2 if chunks > 1 else 1
    groups = choose.randint(fewest, min(ranks, nodes // chunks, 3 if chunks > 1 else ranks))
    stages = groups * chunks
    cuts = sorted(choose.sample(range(1, nodes), stages - 1))
    order = choose.sample(range(ranks), ranks)
    bounds = sorted(choose.sample(range(1, ranks), groups - 1))
    ranks_of = [
        sorted(order[first:last])
        for first, last in zip([0, *bounds], [*bounds, ranks], strict=True)
    ]
    micro_batches = choose.randint(1, 4)
    if chunks > 1:
        micro_batches = groups * choose.randint(1, 4 // groups)
    recompute_as = random.Random(seed + 1)

    def recompute(names):
        """A stage in segments, as a whole, or not at all."""
        if recompute_as.random() < 0.4:
            return borders.segments(names, [], recompute_as.randint(1, 4))
        return choose.random() < 0.3

    return {
        "format": "rannc-plan",
        "version": 3,
        "schedule": schedule,
        "interleave": chunks,
        "micro_batches": micro_batches,
        "stages": [
            {
                "nodes": node_names[begin:end],
                "ranks": ranks_of[stage % groups],
                "recompute": recompute(node_names[begin:end]),
            }
            for stage, (begin, end) in enumerate(zip([0, *cuts], [*cuts, nodes], strict=True))
        ],
    }


def loss_first(model):
    """The outputs of a random graph with one loss, a mean or a sum, before those with rows."""
    numbers = [value for value in model.outputs if layout(value.rows) is None]
    loss = numbers[0] if numbers else model.graph.mean(model.outputs[-1])
    return [loss, *(value for value in model.outputs if layout(value.rows))]
