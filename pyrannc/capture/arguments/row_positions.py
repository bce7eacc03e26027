"""Arguments that are positions of rows, and would point at those of another rank."""

from pyrannc import _C
from pyrannc.errors import TraceError


def refuse(captured, call, names, said) -> None:
    """Where several ranks have rows: such an argument is an error, unless the user has said where
    its rows are.

    Args:
        call: :class:`~pyrannc.capture.arguments.call.Call`, the captured one.
        names: Of its tensors.
        said: Indices of those of which the user has said so.

    Raises:
        TraceError: Names the argument, and what to say.
    """
    graph = captured.whole
    probes = [None] * len(captured.probes)  # further inputs, which are no arguments
    given = ([*each, *probes] for each in (call.paths, names, captured.batch_dims))
    inputs = {
        graph.values[value].name: (path, name)
        for value, path, name, dim in zip(
            graph.inputs, *map(captured.inputs_in_order, given), strict=True
        )
        if dim is not None and call.paths.index(path) not in said
    }
    for node, value in _C.ir.row_positions(graph):
        if argument := inputs.get(graph.values[value].name):
            _refuse(graph.nodes[node], *argument)


def _refuse(node, path, name):
    raise TraceError(
        f"module '{node.module}', {node.source}: {path} holds positions of rows, or where examples "
        "begin, and is taken for rows itself because it has as many entries. One process would see "
        "the rows of all ranks, and the positions of each rank would point at those of the first."
        f"\n  Where it has no rows, say RaNNCModule(..., batch_dims={{{name!r}: None}}), and pass "
        f"the same on every rank. Where its positions count the rows of all ranks, say "
        f"batch_dims={{{name!r}: 0}}."
    )
