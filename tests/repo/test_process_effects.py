"""What reaches beyond the model is in one place, and on one page."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "pyrannc" / "job" / "process.py"
PAGE = (ROOT / "docs" / "process-wide-effects.md").read_text()

PYTHON = re.compile(
    r"\b(?:sys|threading)\.(?:excepthook|unraisablehook)\b"
    r"|\bset_num_(?:interop_)?threads\("
    r"|\bregister_optimizer_step_(?:pre|post)_hook\b"
    r"|\bregister_module_\w*hook\b"
    r"|^\s*(?:import|from) (?:atexit|signal|faulthandler|ctypes)\b"
    r"|\bos\.(?:environ\[[^\]]+\] =|environ\.(?:update|setdefault|pop)|putenv|register_at_fork)"
    r"|\bwarnings\.(?:simplefilter|filterwarnings)\("
    r"|\b_C\.util\.keep_freed_memory\b",
    re.MULTILINE,
)
# The folder that may do it, and what that is.
CORE = {
    re.compile(r"\bmall(?:opt|oc_trim)\("): "src/util",
    re.compile(r"\bsigaction\(|\bstd::signal\(|\bsigprocmask\("): "src/rannc_plan",
    re.compile(r"\bon_exit\(|\batexit\(|\bset_terminate\("): "src/comm",
    re.compile(r"\bset_num_(?:interop_)?threads\(|\bsetenv\(|\bputenv\(|\bpthread_atfork\("): None,
}


def found(pattern, path):
    match = pattern.search(path.read_text())
    return match and match.group().strip()


def test_only_one_module_of_the_package_reaches_beyond_the_model():
    assert found(PYTHON, HOME)
    for path in (ROOT / "pyrannc").rglob("*.py"):
        if path == HOME or path.parent.name == "cli":  # a command has a process of its own
            continue
        calls = found(PYTHON, path)
        assert not calls, f"{path.relative_to(ROOT)}: {calls} belongs into pyrannc/job/process.py"


@pytest.mark.parametrize("pattern", CORE, ids=lambda pattern: CORE[pattern] or "nowhere")
def test_the_extension_changes_the_process_in_few_places(pattern):
    places = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.[ch]*")
        if path.suffix in (".h", ".cpp") and found(pattern, path)
    ]
    home = CORE[pattern]
    assert bool(places) == bool(home)
    assert all(place.startswith(f"{home}/") for place in places), places


def test_the_page_has_every_effect_and_settings_that_exist():
    from pyrannc.config import ITEMS

    functions = [node for node in ast.parse(HOME.read_text()).body if hasattr(node, "args")]
    for function in functions:
        assert function.name.startswith("_") or f"`{function.name}`" in PAGE, function.name
    settings = re.findall(r"`(\w+)=\w+`|`(\w+)=\"\w+\"`", PAGE)
    assert len(settings) > 5
    for setting in settings:
        assert "".join(setting) in ITEMS, setting


def test_the_page_is_linked():
    for page in ("README.md", "docs/settings.md", "docs/design.md"):
        assert "process-wide-effects.md" in (ROOT / page).read_text(), page
