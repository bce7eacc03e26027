"""Random graphs on one device against the CPU: loss, outputs and gradients, two micro-batches."""

import json

import device
import pipeline
import torch
from on_devices import problem

from pyrannc import _C

SEEDS = range(12)
TOLERANCE = 1e-9  # float64


def error_of(seed, place):
    """The largest error of loss and gradients, over the largest entry."""
    made = problem(seed)
    graph, outputs, rows, inputs, state = (
        made.graph,
        made.outputs,
        made.rows,
        made.inputs,
        made.state,
    )
    one = torch.ones((), dtype=torch.float64)
    direct = pipeline.run_directly(graph.text(outputs[:1]), state, inputs, rows, [one])
    executor = _C.runtime.Executor(
        _C.ir.parse(graph.text(outputs[:1])),
        [],
        _C.plan.Plan.from_json(json.dumps(pipeline.make_plan(graph.node_names, [[0]], 2))),
        _C.comm.make_local(1)[0],
        device=str(place),
    )
    there = {name: tensor.to(place) for name, tensor in state.items()}
    parameters, buffers = pipeline.local_state(executor, there)
    call = executor.forward([each.to(place) for each in inputs], parameters, buffers, [rows], True)
    pairs = [(call.outputs[0], direct.outputs[0])]
    gradients = call.backward([one.to(place)])
    for name, gradient in zip(executor.parameter_names, gradients, strict=False):
        if gradient is not None:
            pairs.append((gradient, direct.gradients[name]))
    scale = max(theirs.abs().max().item() for _, theirs in pairs)
    return max((ours.cpu() - theirs).abs().max().item() for ours, theirs in pairs) / scale


if __name__ == "__main__":
    place = device.start()
    errors = [error_of(seed, place) for seed in SEEDS]
    found = zip(SEEDS, errors, strict=True)
    failures = [f"seed {seed}: error {error:.3g}" for seed, error in found if error > TOLERANCE]
    print(json.dumps({"figures": {"largest error": max(errors)}, "failures": failures}))
