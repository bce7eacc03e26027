"""Graphs written by hand: a builder of their text form that fills in rows and names."""

import torch


class Value:
    """A value under construction: its name, its sizes with "B" for the rows, and its layout."""

    def __init__(self, name, sizes, rows, dtype="float64"):
        self.name, self.sizes, self.rows, self.dtype = name, tuple(sizes), rows, dtype

    def __str__(self):
        return f"%{self.name}"


class GraphText:
    """Collects the lines of one graph; float64 unless said otherwise."""

    def __init__(self):
        self._lines, self.inputs, self._nodes = [], [], 0
        self.state_sizes = {}  # of parameters and buffers, by name
        self.node_names = []  # of nodes that a plan places, in order

    def _declare(self, kind, value, *properties):
        sizes = ", ".join(map(str, value.sizes))
        rows = () if value.rows in (None, "none") else (value.rows,)
        words = [
            kind,
            f"{value.name}:",
            f"{value.dtype}[{sizes}]",
            *rows,
            *filter(None, properties),
        ]
        self._lines.append("  " + " ".join(words))
        return value

    def input(self, name, sizes, rows="apart(0)", grad=False, dtype="float64"):
        value = self._declare("input", Value(name, sizes, rows, dtype), "grad" if grad else "")
        self.inputs.append(value)
        return value

    def parameter(self, name, sizes):
        self.state_sizes[name] = tuple(sizes)
        return self._declare("parameter", Value(name, sizes, None), "grad")

    def buffer(self, name, sizes, dtype="float64"):
        self.state_sizes[name] = tuple(sizes)
        return self._declare("buffer", Value(name, sizes, None, dtype))

    def call(self, op, arguments, sizes, rows="apart(0)", **clauses):
        """Adds ``node = op(arguments)`` and returns its one result."""
        return self.calls(op, arguments, [(sizes, rows)], **clauses)[0]

    def calls(self, op, arguments, results, writes=(), module="", shares=None, dtype="float64"):
        """Adds a node; ``results`` are (sizes, rows). Rows "none": cloned, so in no stage."""
        number = self._nodes
        self._nodes += 1
        values = [Value(f"v{number}_{i}", *result, dtype) for i, result in enumerate(results)]
        words = [f"  node n{number} = {op}({', '.join(map(_argument, arguments))})"]
        words.append("-> " + ", ".join(map(str, values)))
        words += ["writes " + ", ".join(map(str, writes))] if writes else []
        words += [f"in {module}"] if module else []
        self._lines.append(" ".join(words))
        grad = "grad" if dtype in ("float64", "complex128") else ""
        for value in values:
            self._declare("result", value, grad, f"shares {shares}" if shares else "")
        if any(value.rows != "none" for value in values):
            self.node_names.append(f"n{number}")
        return values

    def linear(self, value, name, features):
        """``nn.Linear`` with fresh parameters over the last dimension."""
        weight = self.parameter(f"{name}.weight", (features, value.sizes[-1]))
        bias = self.parameter(f"{name}.bias", (features,))
        sizes = (*value.sizes[:-1], features)
        return self.call("aten::linear", [value, weight, bias], sizes, value.rows, module=name)

    def mean(self, value):
        return self.call("aten::mean", [value, None], (), "mean")

    def text(self, outputs):
        inputs, outputs = (", ".join(map(str, values)) for values in (self.inputs, outputs))
        return "\n".join([f"graph test({inputs}) -> ({outputs})", *self._lines, ""])

    def state(self, seed=0):
        """Fresh parameters and buffers by name."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(sizes, generator=generator, dtype=torch.float64) * 0.5
            for name, sizes in self.state_sizes.items()
        }


def _argument(argument):
    if argument is None:
        return "none"
    if isinstance(argument, bool):
        return str(argument).lower()
    if isinstance(argument, list):
        return "[" + ", ".join(map(str, argument)) + "]"
    return str(argument)
