"""Arguments that are positions of rows, and would point at those of another rank."""

from pyrannc.errors import TraceError

# Operators (self, dim, index, ...).
_ALONG_A_DIMENSION = {
    "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "gather", "scatter",
    "scatter_", "scatter_add", "scatter_add_",
}  # fmt: skip
# What leaves positions what they are.
_VIEWS = {
    "to", "_to_copy", "view", "reshape", "squeeze", "unsqueeze", "select", "slice", "expand",
    "clone", "contiguous", "detach", "alias",
}  # fmt: skip
_BAGS = {"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"}


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
    inputs = {
        graph.values[value].name: (path, name)
        for value, path, name, dim in zip(
            graph.inputs, captured.inputs_in_order(call.paths), captured.inputs_in_order(names),
            captured.inputs_in_order(captured.batch_dims), strict=True,
        )
        if dim is not None and call.paths.index(path) not in said
    }  # fmt: skip
    source = dict(inputs)  # by the name of each value that holds an argument's entries
    by_name = {value.name: value for value in graph.values}
    for number, node in enumerate(graph.nodes):
        op, arguments = node.op.removeprefix("aten::").partition(".")[0], graph.arguments(number)
        if op in _VIEWS and arguments and (found := source.get(_name(arguments[0]))):
            source.update({graph.values[output].name: found for output in node.outputs})
        for position in _positions(op, arguments, by_name):
            if found := source.get(position):
                _refuse(node, *found)


def _positions(op, arguments, values) -> list:
    """Names of the values whose entries are positions along the rows of another one."""
    if op in _BAGS:
        return [_name(arguments[2])]
    rows = values[_name(arguments[0])].rows if arguments and _name(arguments[0]) else None
    if rows is None or rows.kind not in ("apart", "mixed"):
        return []
    if op in _ALONG_A_DIMENSION:
        return [_name(arguments[2])] if arguments[1] == rows.dim else []
    if op == "index" and len(names := arguments[1][1]) > rows.dim:
        name = names[rows.dim]
        return [] if name is None or values[name].dtype == "boolean" else [name]
    return []


def _name(argument):
    return argument[1] if isinstance(argument, tuple) and argument[0] == "value" else None


def _refuse(node, path, name):
    raise TraceError(
        f"module '{node.module}', {node.source}: {path} holds positions of rows, or where examples "
        "begin, and is taken for rows itself because it has as many entries. One process would see "
        "the rows of all ranks, and the positions of each rank would point at those of the first."
        f"\n  Where it has no rows, say RaNNCModule(..., batch_dims={{{name!r}: None}}), and pass "
        f"the same on every rank. Where its positions count the rows of all ranks, say "
        f"batch_dims={{{name!r}: 0}}."
    )
