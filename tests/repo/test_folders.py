"""A folder is read at one glance: at most fifteen sources, a header and its .cpp as one."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 15


def test_no_folder_has_more_sources_than_one_sees_at_a_glance():
    for top in ("src", "include", "pyrannc", "tests/accelerator"):
        for folder in (path for path in (ROOT / top).rglob("*") if path.is_dir()):
            sources = {
                path.stem for path in folder.iterdir() if path.suffix in {".h", ".cpp", ".py"}
            }
            assert len(sources) <= MOST, f"{folder} has {len(sources)}: {sorted(sources)}"
