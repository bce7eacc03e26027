"""Finds where a graph that differs from its model first goes wrong."""

import torch

from pyrannc import _C
from pyrannc.selfcheck import compare


def locate(difference, capture, model, call, batch, state) -> None:
    """Sets module and source line of a difference, when they can be found.

    A gradient or a buffer is traced to the node that first reads it. For outputs, the model runs
    once more with every module's output recorded, and the graph runs with the last value of each
    of these modules as an output: the first module that differs, in the order of the graph, is it.

    Args:
        call: ``(args, kwargs)`` of the model.
        batch: The same call, as the graph's inputs.
        state: Parameters and copies of buffers, by name.
    """
    if difference.kind == "outputs":
        node = first_wrong_node(capture, model, call, batch, state, difference.tolerance)
    else:
        index = _C.ir.first_reader(capture.graph, difference.name)
        node = None if index is None else capture.graph.nodes[index]
    if node is not None:
        difference.module = node.module
        difference.source = node.source


def first_wrong_node(capture, model, call, batch, state, tolerance):
    """The last node of the first module, in graph order, whose output differs."""
    graph = capture.graph
    ends = _C.ir.module_ends(graph)
    recorded = module_outputs(model, call, ends)
    modules = sorted(recorded, key=lambda path: ends[path])
    if not modules:
        return None
    keep = [graph.nodes[ends[path]].outputs[0] for path in modules]
    whole = _C.ir.extract(graph, list(range(len(graph.nodes))), keep)

    by_name = {graph.values[v].name: t for v, t in zip(graph.inputs, batch, strict=True)}
    inputs = [by_name[whole.values[value].name] for value in whole.inputs]
    interpreter = _C.runtime.Interpreter(whole, capture.objects, str(batch[0].device))
    states = [state[name] for name in interpreter.state_names()]
    with torch.no_grad():
        found = interpreter.run(inputs, states, capture.batch_size(*call))
    for path, tensor in zip(modules, found, strict=True):
        expected = recorded[path]
        # Another shape means that the module ends with something else than its last node.
        if expected.shape == tensor.shape and expected.dtype == tensor.dtype:
            error, _ = compare.difference(expected, tensor, compare.largest_entry(expected) or 1.0)
            if error > tolerance:
                return graph.nodes[ends[path]]
    return None


def module_outputs(model, call, paths) -> dict[str, torch.Tensor]:
    """Outputs of the modules that return one tensor and are called once."""
    calls, outputs, handles = {}, {}, []

    def record(path):
        def hook(_module, _inputs, output):
            calls[path] = calls.get(path, 0) + 1
            # A clone, because a later in-place operator may write it.
            outputs[path] = output.detach().clone() if isinstance(output, torch.Tensor) else None

        return hook

    for path, module in model.named_modules():
        if path in paths:
            handles.append(module.register_forward_hook(record(path)))
    try:
        args, kwargs = call
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return {path: out for path, out in outputs.items() if out is not None and calls[path] == 1}
