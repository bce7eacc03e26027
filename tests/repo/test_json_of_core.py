"""What the core made is a type in Python, too: nobody parses its JSON."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pyrannc"

# Calls of json.loads by file, and why each may be there.
ALLOWED = {
    "job/torch_group.py": (1, "what Python has said on another rank, through torch's store"),
    "capture/reference.py": (1, "a capture in words, which Python itself has made on another rank"),
    "stored/index.py": (1, "the index of a checkpoint, which Python has written"),
    "stored/folder.py": (1, "the index of weights in Hugging Face's layout"),
    "profiling/cache.py": (1, "the user's file of measured operators, which Python has written"),
    "profiling/kept_file.py": (1, "what was measured, kept in the user's cache by Python"),
    "show/record.py": (2, "records of runs, which Python has written, and the plan of one"),
    "show/moves.py": (1, "a plan file, of which others are made, for a command without extension"),
    "show/advise.py": (1, "the user's own request, of which others are made"),
    "show/figures.py": (1, "a plan file, whose figures are printed without extension"),
    "show/diff.py": (1, "plan files, for a command that has no extension"),
    "cli/hosts.py": (1, "answers of another host's Python"),
    "cli/probe.py": (2, "what it is asked by another host's Python, and what its own says"),
    "planner.py": (2, "what rannc-plan prints, for those who have no extension and want dicts"),
}


def uses_of_loads(text: str) -> int:
    """References to json's loads and load, however they are imported; a name without a call, as in
    map(json.loads, ...), counts, too."""
    tree = ast.parse(text)
    names = {"json"}
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname for each in node.names if each.name == "json" and each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "json":
            count += sum(each.name in ("load", "loads") for each in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads"):
            count += isinstance(node.value, ast.Name) and node.value.id in names
    return count


def test_json_is_parsed_where_python_or_the_user_has_made_it_only():
    found = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        found[path.relative_to(PACKAGE).as_posix()] += uses_of_loads(path.read_text())
    assert +found == Counter({file: count for file, (count, _) in ALLOWED.items()})


def test_every_way_to_parse_counts():
    assert uses_of_loads("import json\nx = json.loads(a)\ny = map(json.loads, b)") == 2
    assert uses_of_loads("import json as j\nx = j.load(a)") == 1
    assert uses_of_loads("from json import loads\nx = loads(a)") == 1
    assert uses_of_loads("import torch\nx = torch.load(a)\ny = json.dumps(b)") == 0
