"""Runs the graphs of all places of a tensor-parallel group side by side, with torch's operators.

Each collective takes the operands of all places at once, so that one process computes what a group
would, and one backward pass goes through all of them.
"""

import torch

DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
MEMORY_FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last}


def in_order_of(like, shape):
    """An empty tensor whose dimensions lie in memory in the order of those of ``like``."""
    one = any(mine == 1 < whole for mine, whole in zip(like.shape, shape, strict=True))
    if one or like.is_contiguous():
        return like.new_empty(list(shape))
    strides, stride = [0] * like.dim(), 1
    for dim in sorted(range(like.dim()), key=lambda dim: (like.stride(dim), like.shape[dim] != 1)):
        strides[dim] = stride
        stride *= max(shape[dim], 1)
    return like.new_empty_strided(list(shape), strides)


def part(whole, dim, stretches):
    """The stretches of ``whole`` along ``dim``, side by side."""
    made = torch.cat([whole.narrow(dim, begin, size) for begin, size in stretches], dim)
    return in_order_of(whole, made.shape).copy_(made)


def joined(parts, dim, pieces):
    """The whole tensor of which each place has the stretches that ``pieces`` gives for it."""
    shape = list(parts[0].shape)
    shape[dim] = sum(size for stretches in pieces for _, size in stretches)
    whole = in_order_of(parts[0], shape)
    for mine, stretches in zip(parts, pieces, strict=True):
        at = 0
        for begin, size in stretches:
            whole.narrow(dim, begin, size).copy_(mine.narrow(dim, at, size))
            at += size
    return whole


def all_parts(tensors, dim, pieces):
    pairs = zip(tensors, pieces, strict=True)
    return tuple(part(tensor, dim, stretches) for tensor, stretches in pairs)


def on_all(tensor, places):
    return tuple(in_order_of(each, tensor.shape).copy_(tensor) for each in places)


class Sum(torch.autograd.Function):
    """Forward all-reduce, backward nothing."""

    @staticmethod
    def forward(ctx, *tensors):
        return on_all(sum(tensors[1:], tensors[0]), tensors)

    @staticmethod
    def backward(ctx, *grads):
        return grads


class SumGradient(torch.autograd.Function):
    """Forward nothing, backward all-reduce."""

    @staticmethod
    def forward(ctx, *tensors):
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx, *grads):
        return on_all(sum(grads[1:], grads[0]), grads)


class AllGather(torch.autograd.Function):
    """Forward all-gather, backward slice."""

    @staticmethod
    def forward(ctx, dim, pieces, *tensors):
        ctx.dim, ctx.pieces = dim, pieces
        return tuple(joined(tensors, dim, pieces) for _ in tensors)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *all_parts(grads, ctx.dim, ctx.pieces)


class Slice(torch.autograd.Function):
    """Forward slice, backward all-gather."""

    @staticmethod
    def forward(ctx, dim, pieces, *tensors):
        ctx.dim, ctx.pieces = dim, pieces
        return all_parts(tensors, dim, pieces)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *(joined(grads, ctx.dim, ctx.pieces) for _ in grads)


class ReduceScatter(torch.autograd.Function):
    """Forward reduce-scatter, backward all-gather."""

    @staticmethod
    def forward(ctx, dim, pieces, *tensors):
        ctx.dim, ctx.pieces = dim, pieces
        whole = sum(tensors[1:], tensors[0])
        return all_parts([whole for _ in tensors], dim, pieces)

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *(joined(grads, ctx.dim, ctx.pieces) for _ in grads)


class AllGatherSumGradient(torch.autograd.Function):
    """Forward all-gather, backward reduce-scatter."""

    @staticmethod
    def forward(ctx, dim, pieces, *tensors):
        ctx.dim, ctx.pieces = dim, pieces
        return tuple(joined(tensors, dim, pieces) for _ in tensors)

    @staticmethod
    def backward(ctx, *grads):
        whole = sum(grads[1:], grads[0])
        return None, None, *all_parts([whole for _ in grads], ctx.dim, ctx.pieces)


CUTTING = {
    "all_gather": AllGather,
    "slice": Slice,
    "reduce_scatter": ReduceScatter,
    "all_gather_sum_gradient": AllGatherSumGradient,
}


def read_pieces(flat):
    """The stretches of each place, from the list of integers that collectives carry."""
    pieces, numbers = [], iter(flat)
    for count in numbers:
        pieces.append([(next(numbers), next(numbers)) for _ in range(count)])
    return pieces


def collective(name, operands, literals):
    if name == "sum":
        return Sum.apply(*operands)
    if name == "sum_gradient":
        return SumGradient.apply(*operands)
    if name == "max":
        return on_all(torch.stack(operands).amax(0), operands)
    dim, pieces = literals[0], read_pieces(literals[1])
    return CUTTING[name].apply(dim, pieces, *operands)


class Place:
    """The values of one place's graph, in the form of its JSON."""

    def __init__(self, graph, start, rows, objects):
        self.graph, self.rows, self.objects = graph, rows, objects
        self.tensors = {}
        for index, value in enumerate(graph["values"]):
            if value["kind"] == "constant":
                self.tensors[index] = objects[value["object"]]
            elif value["kind"] != "result":
                self.tensors[index] = start[value["name"]]

    def number(self, literal):
        if isinstance(literal, list):
            return literal[0] + literal[1] * self.rows
        return literal

    def argument(self, written):
        """What the JSON says of an argument: a tensor, several, or literals."""
        if not isinstance(written, dict):
            return self.number(written)
        ((kind, value),) = written.items()
        if kind == "value":
            return self.tensors[value]
        if kind == "values":
            return [None if each is None else self.tensors[each] for each in value]
        if kind == "ints":
            return [self.number(each) for each in value]
        if kind == "floats":
            return [float(each) for each in value]
        return {"int": self.number, "float": float}.get(kind, lambda same: same)(value)

    def keep(self, node, results):
        for index, tensor in zip(node["outputs"], results, strict=False):
            if index is None:
                continue
            expected = [self.number(size) for size in self.graph["values"][index]["dims"]]
            assert list(tensor.shape) == expected, (node["name"], list(tensor.shape), expected)
            self.tensors[index] = tensor

    def call(self, node):
        if node.get("kind", "dispatcher") != "dispatcher":  # a function of Python, or a script
            operands = map(self.argument, node["inputs"])
            results = self.objects[node["object"]](*operands)
            return self.keep(node, results if isinstance(results, list | tuple) else [results])
        namespace, name = node["op"].split("::")
        base, _, overload = name.partition(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
        positional, named = [], {}
        for parameter, written in zip(operator._schema.arguments, node["inputs"], strict=False):
            value = self.argument(written)
            if parameter.name == "dtype" and value is not None:
                value = DTYPES[value]
            elif parameter.name == "layout":
                value = None if "Optional" in str(parameter.type) else torch.strided
            elif parameter.name == "memory_format" and value is not None:
                value = MEMORY_FORMATS[value]
            elif parameter.name == "device" and value is not None:
                value = torch.device("cpu")
            if parameter.kwarg_only:
                named[parameter.name] = value
            else:
                positional.append(value)
        results = operator(*positional, **named)
        return self.keep(node, results if isinstance(results, list | tuple) else [results])


def run(graphs, start, rows, objects, without=()):
    """Outputs of each place. ``start`` has inputs, parameters and buffers of each by name.

    Collectives in ``without``, such as "group::sum", are left out.
    """
    places = [
        Place(graph, *rest, rows, objects) for graph, *rest in zip(graphs, start, strict=True)
    ]
    for nodes in zip(*(graph["nodes"] for graph in graphs), strict=True):
        (operator,) = {node["op"] for node in nodes}
        with torch.set_grad_enabled(nodes[0].get("grad_enabled", True)):
            if not operator.startswith("group::"):
                for place, node in zip(places, nodes, strict=True):
                    place.call(node)
                continue
            pairs = list(zip(places, nodes, strict=True))
            operands = [place.argument(node["inputs"][0]) for place, node in pairs]
            literals = [places[0].argument(each) for each in nodes[0]["inputs"][1:]]
            left_out = operator in without
            name = operator.removeprefix("group::")
            results = operands if left_out else collective(name, operands, literals)
            for (place, node), result in zip(pairs, results, strict=True):
                place.keep(node, [result])
    return [[place.tensors[index] for index in place.graph["outputs"]] for place in places]
