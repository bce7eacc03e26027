"""Counts of the Python face: calls in a step, lines of code, owners of hooks, broadcast sites.

    python tests/support/face_counts.py [pyrannc]

prints them. Of another checkout, whose package is given, all but the calls.
"""

import ast
import collections
import io
import re
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pyrannc"
_REGISTER = re.compile(r"\bregister(?:_optimizer)?_step_(?:pre|post)_hook\(")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def calls_inside(function, package=PACKAGE) -> collections.Counter:
    """The calls of Python functions of the package that ``function()`` makes, by file and name.
    Comprehensions are functions in Python up to 3.11, and each turn of a generator is a call."""
    found, folder = collections.Counter(), f"{package}/"

    def look(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            found[code.co_filename.removeprefix(folder), code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def calls_of_four_linears() -> dict[str, collections.Counter]:
    """Of a later forward, and of a whole step, of four ``nn.Linear`` under AdamW."""
    import torch
    from torch import nn

    import pyrannc

    torch.manual_seed(0)
    inner = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-3)
    config = pyrannc.Config(calibrate=False, self_check=False, log_level="error")
    model = pyrannc.RaNNCModule(inner, optimizer, config)
    batch = torch.randn(16, 8)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(pyrannc.report.training_steps.REPORT_AFTER + 2):  # these are measured
        step()
    return {"forward": calls_inside(lambda: model(batch)), "step": calls_inside(step)}


def lines(package=PACKAGE) -> int:
    """Lines of code, without blank ones, comments and docstrings."""
    return sum(_lines_of(path.read_text()) for path in package.rglob("*.py"))


def _lines_of(text: str) -> int:
    with_code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, holders) and ast.get_docstring(node, clean=False) is not None:
            said = node.body[0]
            with_code.difference_update(range(said.lineno, said.end_lineno + 1))
    return len(with_code)


def hook_owners(package=PACKAGE) -> dict[str, int]:
    """By file, the places that register hooks on the steps of optimizers."""
    found = {
        str(path.relative_to(package)): len(_REGISTER.findall(path.read_text()))
        for path in package.rglob("*.py")
    }
    return {name: count for name, count in found.items() if count}


def broadcast_sites(package=PACKAGE) -> dict[str, int]:
    """By file, the places that send a tensor from one rank to others by hand."""
    found = {}
    for path in package.rglob("*.py"):
        if path.name == "named_tensors.py":
            continue
        count = sum(_sends(node) for node in ast.walk(ast.parse(path.read_text())))
        if count:
            found[str(path.relative_to(package))] = count
    return found


def _sends(node) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        owner = called.value
        by_name = isinstance(owner, ast.Name) and owner.id == "named_tensors"
        return by_name and called.attr == "broadcast"
    return isinstance(called, ast.Name) and called.id == "broadcast"


def main():
    package = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PACKAGE
    print(f"{lines(package)} lines of code")
    for what, found in (
        ("owners of hooks on steps", hook_owners(package)),
        ("broadcast sites", broadcast_sites(package)),
    ):
        where = ", ".join(f"{name} {count}" for name, count in sorted(found.items()))
        print(f"{sum(found.values())} {what} in {len(found)} files: {where}")
    if package == PACKAGE:
        for what, calls in calls_of_four_linears().items():
            files = len({name for name, _ in calls})
            print(f"a later {what}: {calls.total()} calls in {files} files")


if __name__ == "__main__":
    main()
