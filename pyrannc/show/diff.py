"""Two plans beside each other, as text."""

import json
import math
import textwrap

from pyrannc import planner
from pyrannc.show import size
from pyrannc.show.page import read


def text(first, second, width=80) -> str:
    """What two plan files differ in, in lines of at most ``width`` columns where that is possible.

    Raises:
        PlannerInputError: One of them is no plan.
    """
    found = facts(first, second)
    if len(found) == 1:
        outcomes = zip((first, second), found[0][1:], strict=True)
        return "".join(_outcome(path, said, width) for path, said in outcomes)
    rows = [(name, str(a), str(b)) for name, a, b in found]
    name_width = max(len(row[0]) for row in rows)
    room = max(12, (width - name_width - 6) // 2)
    lines = []
    for name, a, b in rows:
        mark = " " if a == b else "*"
        cut = [each if len(each) <= room else each[: room - 3] + "..." for each in (a, b)]
        lines.append(f"{mark} {name:{name_width}}  {cut[0]:{room}}  {cut[1]}".rstrip())
    if any(line.startswith("*") for line in lines):
        lines += ["", "Lines with * differ."]
    return "\n".join(lines) + "\n"


def facts(first, second) -> list[tuple]:
    """What is compared: a name, and what each of the plans has; the only one is ``fits`` where one
    of them says why nothing fits."""
    plans = []
    for path in (first, second):
        planner.check_shown(path)
        plans.append(json.loads(read(path)))
    found = [("plan", str(first), str(second))]
    if not all(plan.get("feasible", True) for plan in plans):
        return [("fits", *(plan.get("reason") or "yes" for plan in plans))]
    found.append(("model", *_models(plans)))
    for name, of in _FACTS.items():
        found.append((name, *(of(plan) for plan in plans)))
    if any(_places(stage) > 1 for plan in plans for stage in plan["stages"]):
        found.append(("collectives of a micro-batch", *map(_collectives, plans)))
    for s in range(max(len(plan["stages"]) for plan in plans)):
        here = [_stage(plan, s) for plan in plans]
        if here[0] == here[1]:  # what their words leave out
            here = [text + more for text, more in zip(here, _more(plans, s), strict=True)]
        found.append((f"stage {s}", *here))
    return found


def _outcome(path, said, width):
    lines = f"{path}: {'a plan that fits' if said == 'yes' else said}".splitlines()
    lines = [textwrap.fill(line, width, subsequent_indent="  ") for line in lines]
    return "\n".join(lines) + "\n"


def _models(plans):
    """How many operators each plan shares out, and how many of them the other does not have."""
    names = [{name for stage in plan["stages"] for name in stage["nodes"]} for plan in plans]
    for mine, others in (names, reversed(names)):
        alone = len(mine - others)
        yield f"{len(mine)} operators" + (f", {alone} only here" if alone else "")


def _peak(plan, stage):
    peaks = plan.get("notes", {}).get("step_peak_bytes")
    predicted = plan["stages"][stage].get("predicted")
    return peaks[stage] if peaks else predicted["peak_bytes"] if predicted else 0


def _stage(plan, stage):
    if stage >= len(plan["stages"]):
        return "-"
    at = plan["stages"][stage]
    names = at.get("notes", {}).get("modules") or f"{len(at['nodes'])} operators"
    recomputed = ", recomputed" if at.get("recompute") else ""
    places = _places(at)
    together = f" on groups of {places}" if places > 1 else ""
    return f"{len(at['ranks']) // places} x {names}{together}{recomputed}"


def _places(stage):
    """Ranks that compute its layers together."""
    return math.prod(stage.get("mesh", [1]))


def _collectives(plan):
    notes = [stage.get("notes", {}).get("group", {}) for stage in plan["stages"]]
    sent, ns = (
        sum(note.get(key, 0) for note in notes) for key in ("collective_bytes", "collective_ns")
    )
    return f"{size(sent)}, {_time(ns)}" if sent else "none"


def _more(plans, stage):
    """What stages of equal replicas and modules differ in: their ranks, or their operators."""
    a, b = (plan["stages"][stage] for plan in plans)
    if a.get("factors") != b.get("factors"):
        return [f", cut along {', '.join(each.get('factors', {})) or 'nothing'}" for each in (a, b)]
    if a["ranks"] != b["ranks"]:
        return [f" on ranks {', '.join(map(str, each['ranks']))}" for each in (a, b)]
    if set(a["nodes"]) != set(b["nodes"]):
        return [f", {len(each['nodes'])} operators" for each in (a, b)]
    return ["", ""]


def _time(ns):
    if ns < 1e5:
        return f"{ns / 1e3:.3f} us"
    return f"{ns / 1e6:.3f} ms" if ns < 1e10 else f"{ns / 1e9:.3f} s"


_FACTS = {
    "iteration": lambda plan: _time(plan.get("iteration_ns", 0)),
    "schedule": lambda plan: plan["schedule"],
    "micro-batches": lambda plan: plan["micro_batches"],
    "stages": lambda plan: len(plan["stages"]),
    "ranks": lambda plan: len({rank for stage in plan["stages"] for rank in stage["ranks"]}),
    "recompute": lambda plan: (
        f"{sum(bool(stage.get('recompute')) for stage in plan['stages'])} stages"
    ),
    "fullest rank": lambda plan: size(max(_peak(plan, s) for s in range(len(plan["stages"])))),
}
