"""docs/map.md names every folder of the sources and every file in it, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "docs" / "map.md").read_text()


def on_the_page():
    """The names of files by folder, of the items ``- **FOLDER**: ...``."""
    trip = MAP.split("## Where to add")[0]
    items = re.findall(r"^- \*\*([\w/]+)\*\*: (.*(?:\n  .*)*)", trip, re.MULTILINE)
    assert len(dict(items)) == len(items), "a folder has two items"
    return {folder: set(re.findall(r"`([^`]+)`", item)) for folder, item in items}


def in_the_tree():
    folders = {}
    for top in ("pyrannc", "src", "include"):
        for path in (ROOT / top).rglob("*"):
            plain = path.stem not in {"__init__", "_build_info"}
            if path.suffix in {".h", ".cpp", ".py"} and plain:
                folder = str(path.parent.relative_to(ROOT))
                folders.setdefault(folder, set()).add(path.stem)
    return folders


def test_the_map_names_all_folders_and_files():
    page, tree = on_the_page(), in_the_tree()
    missing = {folder: names - page.get(folder, set()) for folder, names in tree.items()}
    gone = {folder: names - tree.get(folder, set()) for folder, names in page.items()}
    assert not any(missing.values()), {key: names for key, names in missing.items() if names}
    assert not any(gone.values()), {key: names for key, names in gone.items() if names}
    assert page.keys() == tree.keys()


def test_the_advice_names_files_that_are_there():
    advice = MAP.split("## Where to add")[1]
    for path in re.findall(r"`((?:src|include|pyrannc|tests|docs)/[^`]*)`", advice):
        assert (ROOT / path).exists(), path
    for subject in ("schedule", "transport", "row rule", "cost of a new device", "setting"):
        assert f"- **a {subject}**: " in advice, subject
