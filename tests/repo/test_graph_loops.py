"""Whatever goes through a graph's nodes or values is a pass in src/ir, not a loop in Python."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pyrannc"


def walks(text: str) -> list[int]:
    """Lines that use ``x.nodes`` or ``x.values`` for more than one item or their number."""
    tree = ast.parse(text)
    allowed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            allowed.add(node.value)
        elif isinstance(node, ast.Call):
            allowed.add(node.func)  # dict.values()
            if isinstance(node.func, ast.Name) and node.func.id == "len":
                allowed.update(node.args)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("nodes", "values")
        and node not in allowed
    ]


def test_no_python_file_goes_through_a_graph():
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 30
    found = [
        f"{path.relative_to(PACKAGE)}:{line}" for path in files for line in walks(path.read_text())
    ]
    assert not found, f"make these a pass in src/ir, bound in src/bind/ir.cpp: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "for node in graph.nodes: pass",
        "[n for n in enumerate(graph.nodes)]",
        "nodes = graph.nodes",
        "any(v.requires_grad for v in capture.graph.values)",
    ],
)
def test_a_walk_is_seen(text):
    assert walks(text) == [1]


def test_single_items_and_dictionaries_are_no_walk():
    assert walks("graph.nodes[0], len(graph.nodes), named.values(), graph.values[i].dims") == []
