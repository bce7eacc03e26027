"""Private names of torch stand in two files, each with what breaks without it, and nowhere else."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pyrannc"
PLACES = {"capture": "capture/torch_private.py", "state": "state/torch_private.py"}
#: Folders that may use what the first of these files names; the others use the second.
OF_CAPTURE = {"capture", "selfcheck", "profiling", "wrapper"}
OF_PYTHON = {"_run_exitfuncs"}  # of atexit, which has no other name for it


def is_private(name) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(trees) -> set[str]:
    """Private names that pyrannc itself defines."""
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.update({node.attr} if ast.unparse(node.value) in ("self", "cls") else ())
    return found | OF_PYTHON | {"_C"}


def of_torch(node) -> bool:
    """Whether an expression is ``torch.a.b``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "torch"


def used(tree, own):
    """(line, name) of what is private in torch; ``name`` is an attribute, or empty for an import or
    a name of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if any(map(is_private, names)):
                yield node.lineno, ""
        elif isinstance(node, ast.Import):
            if any(is_private(part) for a in node.names for part in a.name.split(".")):
                yield node.lineno, ""
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if of_torch(node) or node.attr not in own:
                yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg and is_private(node.arg):
            if node.arg not in own:
                yield node.lineno, node.arg
        elif isinstance(node, ast.Constant) and str(node.value).startswith("torch._"):
            yield node.lineno, ""


def listed(place) -> set[str]:
    """The keys of ATTRIBUTES in one of these files."""
    for node in ast.parse((PACKAGE / place).read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "ATTRIBUTES":
            return {key.value for key in node.value.keys}
    raise AssertionError(f"{place} has no ATTRIBUTES")


def test_private_names_of_torch_stand_in_two_files():
    trees = {
        path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")
    }
    own, allowed = own_names(trees.values()), {side: listed(PLACES[side]) for side in PLACES}
    met, wrong = {side: set() for side in PLACES}, []
    for path, tree in trees.items():
        if str(path) in PLACES.values():
            continue
        side = "capture" if path.parts[0] in OF_CAPTURE else "state"
        met[side].update(name for _, name in used(tree, set()))
        wrong += [f"{path}:{n} {name}" for n, name in used(tree, own) if name not in allowed[side]]
    assert not wrong, f"import these in, or add to ATTRIBUTES of, {PLACES.values()}: {wrong}"
    for side, names in allowed.items():
        assert names <= met[side], "an attribute that nobody uses is listed"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from torch._subclasses import x", ""),
        ("from torch.utils.checkpoint import _x", ""),
        ("import torch._dynamo", ""),
        ("torch._C.f()", "_C"),
        ("sys.modules['torch._dynamo.eval_frame']", ""),
        ("tensor._base", "_base"),
        ("replaced(x, _validate_args=False)", "_validate_args"),
    ],
)
def test_a_private_name_is_seen(text, name):
    assert list(used(ast.parse(text), {"_C"})) == [(1, name)]


def test_own_names_are_not_torchs():
    assert list(used(ast.parse("from pyrannc import _C\nmodel._own\n_C.ir.parse"), {"_own"})) == []
