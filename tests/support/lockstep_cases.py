"""The graphs of all places of a group in one process, compared with the model by itself."""

import dataclasses
import json

import lockstep
import torch

from pyrannc import _C
from pyrannc.capture.arguments import pytree
from pyrannc.capture.model import capture

ROWS = 4


@dataclasses.dataclass
class Case:
    """A captured model in float64, its call, and the gradients that it has by itself."""

    model: torch.nn.Module
    captured: object
    graph: _C.ir.Graph
    objects: list
    inputs: dict
    outputs: list
    grads: dict

    @property
    def largest(self):
        return max(float(grad.abs().max()) for grad in self.grads.values() if grad.numel())


def tensors_of(result):
    """Of what the model returns."""
    return [each for each in pytree.flatten(result)[0] if torch.is_tensor(each)]


def combined(outputs):
    """One number that depends on each element of the outputs."""
    return sum(
        (tensor * torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape)).sum()
        for tensor in outputs
        if tensor.requires_grad
    )


def states(model):
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def case_of(build, args, kwargs, rows=ROWS):
    """``build()``: the same model each time; its call has ``rows`` rows."""
    model = build()
    captured = capture(model, args, kwargs)
    inputs = dict(zip(names(captured.whole), captured.flatten(args, kwargs), strict=True))
    for prelude in captured.preludes:
        interpreter = _C.runtime.Interpreter(prelude, captured.objects, "cpu")
        state = [states(model)[each] for each in interpreter.state_names()]
        sums = interpreter.run([inputs[each] for each in names(prelude)], state, rows)
        inputs.update(zip(names(captured.graph)[len(names(captured.whole)) :], sums, strict=True))
    eager = build()
    outputs = tensors_of(eager(*args, **kwargs))
    combined(outputs).backward()
    grads = {
        each: parameter.grad
        for each, parameter in eager.named_parameters()
        if parameter.grad is not None
    }
    return Case(model, captured, captured.graph, captured.objects, inputs, outputs, grads)


def names(graph):
    return [graph.values[index].name for index in graph.inputs]


def step(case, sharded, without=()):
    """Each place's outputs, and the gradients of the whole parameters, after one backward pass."""
    held = []
    for place in sharded:
        parts = {part.name: part for part in place.parts}
        mine = {}
        for name, tensor in states(case.model).items():
            part = parts.get(name)
            whole = tensor.detach()
            piece = lockstep.part(whole, part.dim, part.stretches) if part else whole
            mine[name] = piece.clone().requires_grad_(tensor.requires_grad)
        held.append(mine)
    graphs = [json.loads(place.graph.to_json()) for place in sharded]
    start = [{**mine, **case.inputs} for mine in held]
    found = lockstep.run(graphs, start, ROWS, case.objects, without)
    outputs = [tensors_of(case.captured.unflatten(each, ROWS, pytree.ANY_NUMBER)) for each in found]
    sum(combined(each) for each in outputs).backward()
    return outputs, {name: whole_gradients(name, sharded, held) for name in case.grads}


def whole_gradients(name, sharded, held):
    """The gradient as each place has it, or the one that their parts make together."""
    tensors = [mine[name] for mine in held]
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in tensors]
    parts = [part for place in sharded for part in place.parts if part.name == name]
    if not parts:
        return grads
    return [lockstep.joined(grads, parts[0].dim, [part.stretches for part in parts])]


def error(case, ways, without=(), sequence=False):
    """The largest difference from the model by itself, as a part of the largest gradient."""
    sharded = [_C.ir.shard(case.graph, ways, place, sequence=sequence) for place in range(ways)]
    _C.ir.verify_shard(case.graph, sharded)
    outputs, grads = step(case, sharded, without)

    def away(mine, expected):
        return float((mine - expected).detach().abs().max()) if expected.numel() else 0.0

    wrong = [
        away(mine, expected)
        for each in outputs
        for mine, expected in zip(each, case.outputs, strict=True)
    ]
    for name, expected in case.grads.items():
        wrong += [away(grad, expected) / case.largest for grad in grads[name]]
    return max(wrong)
