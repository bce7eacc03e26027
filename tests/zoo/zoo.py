"""Captures every architecture of the zoo with both front ends and proves the capture, one line of
JSON for each; ``--page`` makes docs/zoo.md of these lines.

    python tests/zoo/zoo.py results.jsonl [name ...]
    python tests/zoo/zoo.py results.jsonl --page
"""

import json
import re
import sys
import warnings
from pathlib import Path

import transformers
from architectures import call_of, model_of, names

from pyrannc import RaNNCError
from pyrannc.capture.model import capture
from pyrannc.selfcheck import check

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
FRONT_ENDS = ("torchscript", "export")
HEAD = """# The zoo

Architectures of transformers {version}, unmodified, with random weights in tiny shapes
and dropout 0, each captured by both front ends and compared with itself on another batch: outputs,
gradients and buffers. *equal* is what this self-check has found; *rows* says whether ranges of rows
were replayed apart and joined again, or why not. A refusal is an error before anything is trained.
Written by `tests/zoo/zoo.py`;
{counts}.

| kind | architecture | nodes | torchscript | export | rows |
|---|---|---|---|---|---|
"""


def verdict_of(kind, name, front_end) -> dict:
    """What became of one capture: ``verdict`` is equal, differs, refused or failed."""
    model = model_of(kind, name)
    call = call_of(kind, model, 4)
    try:
        captured = capture(model, (), call, front_end=front_end)
        report = check.check(model, captured, (), call)
    except RaNNCError as error:
        return {"verdict": "refused", "reason": _short(error)}
    except Exception as error:
        return {"verdict": "failed", "reason": f"{type(error).__name__}: {_short(error)}"}
    found = {"nodes": len(captured.graph.nodes)}
    if not report.ok:
        return found | {"verdict": "differs", "reason": _short(report.difference)}
    rows = "apart" if report.rows_proved else (report.rows_interact or "; ".join(report.skipped))
    return found | {"verdict": "equal", "rows": _short(rows)}


def line_of(kind, name) -> dict:
    line = {"kind": kind, "name": name}
    try:
        model = model_of(kind, name)
        model(**call_of(kind, model, 4)).loss.backward()
    except Exception as error:
        return line | {"unbuilt": f"{type(error).__name__}: {_short(error)}"}
    return line | {each: verdict_of(kind, name, each) for each in FRONT_ENDS}


def _short(text) -> str:
    text = re.sub(r"\S*/site-packages/", "", str(text).split("\n")[0])
    text = re.sub(r"/\S+/(?=tests/|pyrannc/)", "", text).replace("|", "/")
    return text if len(text) <= 160 else f"{text[:157]}..."


def page(lines) -> str:
    latest = {line["name"]: line for line in lines if "unbuilt" not in line}
    built = [latest[name] for _, name in names() if name in latest]
    counts = ", ".join(
        f"{sum(line[each]['verdict'] == 'equal' for line in built)} of {len(built)} equal under "
        f"{each}"
        for each in FRONT_ENDS
    )
    text = HEAD.format(version=transformers.__version__, counts=counts)
    for line in built:
        cells = [line["kind"], f"`{line['name']}`"]
        cells.append(str(next((line[e]["nodes"] for e in FRONT_ENDS if "nodes" in line[e]), "")))
        for each in FRONT_ENDS:
            found = line[each]
            reason = found.get("reason", "")
            cells.append(f"{found['verdict']}{': ' if reason else ''}{reason}")
        cells.append(next((line[e]["rows"] for e in FRONT_ENDS if "rows" in line[e]), ""))
        text += f"| {' | '.join(cells)} |\n"
    return text


def main():
    results, *wanted = sys.argv[1:]
    results = Path(results)
    if wanted == ["--page"]:
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        PAGE.write_text(page(lines))
        return
    warnings.simplefilter("ignore")
    for kind, name in names():
        if wanted and name not in wanted:
            continue
        with results.open("a") as file:
            file.write(json.dumps(line_of(kind, name)) + "\n")


if __name__ == "__main__":
    main()
