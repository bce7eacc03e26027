"""Random graphs on one device against the CPU: loss, outputs and gradients, in micro-batches."""

import json

import device
import pipeline
import torch
from on_devices import problem
from report import Report

from pyrannc import _C

SEEDS = range(12)
MICRO_BATCHES = (1, 2, 3)
TOLERANCE = 1e-9  # float64


def error_of(seed, place, micro_batches, recompute):
    """The largest error of loss and gradients, over the largest entry."""
    made = problem(seed)
    rows, inputs, state = made.rows, made.inputs, made.state
    text = made.graph.text(made.outputs[:1])
    one = torch.ones((), dtype=torch.float64)
    direct = pipeline.run_directly(text, state, inputs, rows, [one])
    plan = pipeline.make_plan(made.graph.node_names, [[0]], micro_batches, recompute)
    executor = _C.runtime.Executor(
        _C.ir.parse(text),
        [],
        _C.plan.Plan.from_json(json.dumps(plan)),
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
    scale = max(theirs.abs().max().item() for _, theirs in pairs) or 1.0
    return max((ours.cpu() - theirs).abs().max().item() for ours, theirs in pairs) / scale


def main():
    report = Report()
    place = device.start()
    errors = [0.0]
    for seed in SEEDS:
        micro_batches, recompute = MICRO_BATCHES[seed % 3], seed % 2 == 1
        name = f"seed {seed}, {micro_batches} micro-batches{', recompute' * recompute}"
        with report.case(name):
            errors.append(error_of(seed, place, micro_batches, recompute))
            report.expect(errors[-1] <= TOLERANCE, f"{name}: error {errors[-1]:.3g}")
    report.figures |= {"plans": len(SEEDS), "largest error": max(errors)}
    report.show()


if __name__ == "__main__":
    main()
