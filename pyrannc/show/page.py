"""One self-contained page of a plan, or of two beside each other.

Python puts texts together and checks what goes into them; whatever goes through operators, ranks or
actions is in the page's own scripts.
"""

import base64
import gzip
import html
import json
import os
from importlib import resources
from pathlib import Path

from pyrannc import files, planner
from pyrannc.planner import PlannerInputError
from pyrannc.show import record as records

SCRIPTS = ("words.js", "schedule.js", "modules.js", "canvas.js", "page.js")
# A plan that is longer is packed, as graphs are; a shorter one can be read in the page's source.
MOST_PLAIN = 200_000


def write(path, plans, graph=None, record=None) -> None:
    """Writes the page of one plan file, or of two, to ``path``.

    Args:
        path: Where the page goes; it is there as a whole or not at all.
        plans: Paths of plan files.
        graph: Path of the graph-profile that the plans are for; the page then shows operators.
        record: Path of a record of a run; the page then has what was measured beside what was
            predicted.

    Raises:
        PlannerInputError: A file cannot be read, is no file of its kind, of another version or of
            another model, or the page cannot be written; before any work is done.
    """
    check_writable(path)
    write_page(path, page(plans, graph, record))


def write_page(path, text) -> None:
    """Writes ``text`` as a whole; raises PlannerInputError where it cannot."""
    try:
        files.write_whole(path, text)
    except OSError as error:
        raise PlannerInputError(f"{path}: cannot be written: {error.strerror}") from None


def check_writable(path) -> None:
    """Raises PlannerInputError where a page could not be written to ``path``."""
    try:
        files.check_writable(path)
    except OSError as error:
        raise PlannerInputError(f"{path}: cannot be written: {error.strerror}") from None


def page(plans, graph=None, record=None) -> str:
    """The text of the page; see :func:`write`."""
    found = [_plan(path, graph, record) for path in plans]
    names = " and ".join(Path(path).name for path in plans)
    title = f"{'Plan' if len(found) == 1 else 'Plans'} {names}"
    data = f'{{"title": {json.dumps(title)}, "plans": [{", ".join(found)}]}}'
    parts = {
        "@TITLE@": html.escape(title),
        "@STYLE@": _text("page.css"),
        "@DATA@": in_script(data),
        "@SCRIPT@": "\n".join(_text(name) for name in SCRIPTS),
    }
    text = _text("page.html")
    for name, part in parts.items():
        before, after = text.split(name)
        text = before + part + after
    return text


def in_script(data: str) -> str:
    """JSON inside an element of HTML: no text in it can end the element or begin another."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plan(path, graph, record) -> str:
    """A member of the page's list of plans, as JSON."""
    planner.check_shown(path, graph)
    text = read(path)
    members = [f'"name": {json.dumps(os.fspath(path))}']
    if len(text) <= MOST_PLAIN:
        members.append(f'"plan": {text}')
    else:
        members.append(f'"packed": "{_packed(text)}"')
    if graph is not None:
        members.append(f'"packed_graph": "{_packed(read(graph))}"')
    if record is not None:
        members.append(f'"record": {records.checked(record, path)}')
    return "{" + ", ".join(members) + "}"


def read(path) -> str:
    """The text of a file of the user's."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PlannerInputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PlannerInputError(f"{path}: is no text: {error.reason}") from None


def _packed(text):
    # Without a time in it, so that equal files make equal pages.
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _text(name):
    return resources.files("pyrannc.show").joinpath(name).read_text(encoding="utf-8").strip()
