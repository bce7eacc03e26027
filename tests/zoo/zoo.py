"""Captures every architecture of the zoo with both front ends and proves the capture, and trains
it on several ranks, and compares the graphs of two places of a group (``--groups``), one line of
JSON for each; ``--page`` makes docs/zoo.md of these lines, and
keeps the page's rows of architectures that they lack, and what it says of training.

    python tests/zoo/zoo.py results.jsonl [name ...]
    python tests/zoo/zoo.py results.jsonl --train [name ...]
    python tests/zoo/zoo.py results.jsonl --groups [name ...]
    python tests/zoo/zoo.py results.jsonl --page
"""

import json
import re
import statistics
import sys
import textwrap
import warnings
from pathlib import Path

import lockstep_cases
import needs_tracer
import torch
import transformers
from architectures import call_of, kind_of, loss_of, model_of, names

from pyrannc import _C, RaNNCError
from pyrannc.capture.model import capture
from pyrannc.selfcheck import check

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
FRONT_ENDS = ("torchscript", "export")
TRAIN = Path(__file__).with_name("train.py")
RANKS, PLANS = (2, 4), ("free", "four")
_AT_A_TIME = 6  # architectures that one start of the ranks trains
HEAD = """# The zoo

Architectures of transformers {releases}, unmodified, with random weights in tiny shapes
and dropout 0, each captured by both front ends and compared with itself on another batch: outputs,
gradients and buffers. *equal* is what this self-check has found; *rows* says whether ranges of rows
were replayed apart and joined again, or why not. A refusal is an error before anything is trained.
*trained* says on how many ranks three steps of the wrapped model were those of one process with the
whole batch, each time planned freely and again with four stages: losses to 1e-5, weights to 1e-4 of
their largest. Batch normalisations are synchronised, or are compared with one process that
accumulates over the plan's micro-batches. *(1,2)* says that the graphs of two ranks that compute
layers together, run side by side in one process in float64 (or, where a model knows none, in
float32), have the outputs and every gradient of the model, to 1e-8 (1e-4) of the largest; and the
share of the parameters that each rank has a part of.
Written by `tests/zoo/zoo.py`;
{counts}.

| kind | architecture | nodes | torchscript | export | rows | trained | (1,2) |
|---|---|---|---|---|---|---|---|
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
        loss_of(kind, model(**call_of(kind, model, 4))).backward()
    except Exception as error:
        return line | {"unbuilt": f"{type(error).__name__}: {_short(error)}"}
    return line | {each: verdict_of(kind, name, each) for each in FRONT_ENDS}


def in_groups(kind, name) -> dict:
    """What becomes of two places of a group: ``verdict``, and ``cut``, the share of parameters."""
    try:
        return _of_dtype(kind, name, torch.float64)
    except Exception:  # it knows no float64
        try:
            return _of_dtype(kind, name, torch.float32)
        except RaNNCError as error:
            return {"verdict": "refused", "reason": _short(error)}
        except Exception as error:
            return {"verdict": "failed", "reason": f"{type(error).__name__}: {_short(error)}"}


def line_in_groups(kind, name) -> dict:
    line = {"kind": kind, "name": name}
    try:
        model_of(kind, name)
    except Exception as error:
        return line | {"unbuilt": f"{type(error).__name__}: {_short(error)}"}
    return line | {"groups": in_groups(kind, name)}


def _of_dtype(kind, name, dtype) -> dict:
    call = {
        key: value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in call_of(kind, model_of(kind, name), 4).items()
    }
    case = lockstep_cases.case_of(lambda: model_of(kind, name).to(dtype), (), call)
    wrong = lockstep_cases.error(case, 2)
    cut = {part.name for part in _C.ir.shard(case.graph, 2, 0).parts}
    sizes = {each: p.numel() for each, p in case.model.named_parameters(remove_duplicate=False)}
    whole = sum(p.numel() for p in case.model.parameters())
    share = sum(sizes.get(each, 0) for each in cut) / whole
    # Some compute their loss, or parts of themselves, in float32 whatever their weights are.
    exact = dtype == torch.float64 and not any(
        value.dtype == _C.ir.DType.float32 for value in case.graph.values
    )
    equal = wrong <= (1e-8 if exact else 1e-4)
    reason = {} if equal else {"reason": f"{wrong:.1e} away"}
    return {"verdict": "equal" if equal else "differs", "cut": round(share, 3), **reason}


def trained(ranks, cases, timeout) -> dict:
    """What became of each case (``free/gpt2``) on so many ranks; one that ends its ranks fails
    alone."""
    support = str(Path(__file__).parents[1] / "support")
    if support not in sys.path:
        sys.path.append(support)
    import mpi

    found, left = {}, list(cases)
    while left:
        try:
            done = mpi.run([str(TRAIN), *left], ranks, timeout)
            text, end = done.stdout, done.stderr[-2000:]
        except AssertionError as error:  # the deadline
            text, end = str(error), "not finished before the deadline"
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        begun = [line["begins"] for line in lines if "begins" in line]
        for line in lines:
            if "case" in line and found.get(line["case"], {}).get("verdict") != "failed":
                found[line["case"]] = line
        last = begun[-1] if begun else left[0]
        found.setdefault(last, {"case": last, "verdict": "failed", "reason": end})
        left = left[left.index(last) + 1 :]
    return found


def _trained_cell(line) -> str:
    """``2 and 4 ranks``, or which cases were not equal."""
    cases = {key: case for key, case in line.get("trained", {}).items()}
    equal = [
        str(ranks)
        for ranks in RANKS
        if all(cases.get(f"{ranks}/{plan}", {}).get("verdict") == "equal" for plan in PLANS)
    ]
    others = [
        f"{key}: {case['verdict']}: {_short(case['reason'])}"
        for key, case in sorted(cases.items())
        if case["verdict"] != "equal"
    ]
    return "; ".join(([f"{' and '.join(equal)} ranks"] if equal else []) + others)


def _groups_cell(found) -> str:
    if found["verdict"] != "equal":
        return f"{found['verdict']}: {found['reason']}"
    return f"equal, {100 * found['cut']:.0f} %"


def _short(text) -> str:
    text = re.sub(r"\S*/site-packages/", "", str(text).split("\n")[0])
    text = re.sub(r"/\S+/(?=tests/|pyrannc/)", "", text).replace("|", "/")
    return text if len(text) <= 160 else f"{text[:157]}..."


def page(lines, before) -> str:
    """docs/zoo.md, with the rows of ``before`` (the page as it is) where there is no line."""
    latest = {}
    for line in lines:
        if "unbuilt" not in line:
            latest.setdefault(line["name"], {}).update(line)
    found = re.findall(r"^(\| \S+ \| `(\S+)` .*)$", before, re.MULTILINE)
    kept = {name: row for row, name in found}
    made = {
        name: f"| {' | '.join(_cells(line, kept.get(name, '')))} |"
        for name, line in latest.items()
        if "torchscript" in line or name in kept
    }
    rows = [(name, made.get(name) or kept.get(name)) for _, name in names()]
    rows = [(name, row) for name, row in rows if row]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for _, row in rows]
    counts = ", ".join(
        f"{sum(row[3 + place].startswith('equal') for row in cells)} of {len(cells)} equal under "
        f"{each}"
        for place, each in enumerate(FRONT_ENDS)
    )
    shares = [float(found[1]) for row in cells if (found := re.match(r"equal, (\d+) %", row[7]))]
    most = sum(each >= 90 for each in shares)
    counts += f", {len(shares)} equal under (1,2), {most} of them with at least 90 % of their "
    counts += "parameters sharded"
    on_ranks = sum(row[6].strip() == "2 and 4 ranks" for row in cells)
    counts += f", {on_ranks} trained on 2 and 4 ranks"
    captured = {name for name, line in latest.items() if "torchscript" in line}
    releases = _releases({name: name in captured for name, _ in rows}, before)
    untrained = sum(
        row[6].strip() != "" and "trained" not in latest.get(name, {})
        for (name, _), row in zip(rows, cells, strict=True)
    )
    if untrained:
        counts += f" ({untrained} of the cells in that column are of an earlier release or run)"
    title, first, *others = HEAD.format(releases=releases, counts=counts).split("\n\n")
    first = textwrap.fill(first, 100, break_long_words=False, break_on_hyphens=False)
    table = "\n\n".join([title, first, *others]) + "".join(f"{row}\n" for _, row in rows)
    return f"{table}\n{needs_tracer.section()}"


def _releases(made, before) -> str:
    """The release of most rows, and which are of another; ``before``: the page as it is."""
    told = re.search(
        r"of transformers ([\d.]+)(?: \(those of ([\d.]+): (.*?)\))?", before, re.DOTALL
    )
    others = re.findall(r"`(\S+?)`", told[3] or "")
    release = {
        name: transformers.__version__ if new else told[2] if name in others else told[1]
        for name, new in made.items()
    }
    most = statistics.mode(release.values())
    for each in sorted(set(release.values()) - {most}):
        of_it = ", ".join(f"`{name}`" for name, found in release.items() if found == each)
        return f"{most} (those of {each}: {of_it})"
    return most


def _cells(line, before) -> list[str]:
    *captured, trained, groups = [each.strip() for each in (before or "|  |  |")[1:-1].split(" | ")]
    trained = _trained_cell(line) if "trained" in line else trained
    groups = _groups_cell(line["groups"]) if "groups" in line else groups
    if "torchscript" not in line:
        return [*captured, trained, groups]
    cells = [line["kind"], f"`{line['name']}`"]
    cells.append(str(next((line[e]["nodes"] for e in FRONT_ENDS if "nodes" in line[e]), "")))
    for each in FRONT_ENDS:
        found = line[each]
        reason = found.get("reason", "")
        cells.append(f"{found['verdict']}{': ' if reason else ''}{reason}")
    cells.append(next((line[e]["rows"] for e in FRONT_ENDS if "rows" in line[e]), ""))
    return [*cells, trained, groups]


def main():
    results, *wanted = sys.argv[1:]
    results = Path(results)
    if wanted == ["--page"]:
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        PAGE.write_text(page(lines, PAGE.read_text()))
        return
    warnings.simplefilter("ignore")
    if wanted[:1] == ["--train"]:
        _train(results, wanted[1:] or [name for _, name in names()])
        return
    in_one_process = wanted[:1] == ["--groups"]
    wanted = wanted[1:] if in_one_process else wanted
    for kind, name in names():
        if wanted and name not in wanted:
            continue
        line = line_in_groups(kind, name) if in_one_process else line_of(kind, name)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _train(results, wanted):
    """Some at a time, so that little is lost where this ends early."""
    for first in range(0, len(wanted), _AT_A_TIME):
        some = wanted[first : first + _AT_A_TIME]
        cases = [f"{plan}/{name}" for name in some for plan in PLANS]
        found = {name: {} for name in some}
        for ranks in RANKS:
            for case, line in trained(ranks, cases, timeout=1200).items():
                plan, name = case.split("/")
                found[name][f"{ranks}/{plan}"] = line
        with results.open("a") as file:
            for name, of_it in found.items():
                line = {"kind": kind_of(name), "name": name, "trained": of_it}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
