"""What it would cost to have a module on another stage, or to recompute it."""

import json
import textwrap

from pyrannc import planner
from pyrannc.planner import PlannerInputError
from pyrannc.show import size
from pyrannc.show.page import read


class SeveralStages(Exception):
    """The module has no border of its own to move."""


def costs(plan_path, module, graph, cluster, request=None) -> list[dict]:
    """The plan as it is, with a border moved so that ``module`` changes its stage, and with its
    stage's recompute the other way, each judged by ``rannc evaluate``.

    A border moves over all that lies between it and the module, since values flow forward only.

    Args:
        request: Path of the plan request. Default: the rows that the plan was made for.

    Returns:
        ``what``, ``moved`` operators, ``valid``, ``problem``, ``iteration_ns``, ``peak_bytes`` of
        the fullest stage.

    Raises:
        PlannerInputError: A file cannot be used, or the module is not in the plan.
        SeveralStages: Several stages hold the module.
    """
    planner.check_shown(plan_path, graph)
    plan = json.loads(read(plan_path))
    if not plan.get("feasible", True):
        raise PlannerInputError(f"{plan_path}: {plan['reason']}")
    stage, first, last = _place(plan, module)
    rows = None if request else plan.get("notes", {}).get("global_batch")
    if request is None and rows is None:
        raise PlannerInputError(f"{plan_path} does not say its rows: give --request")
    cases = [("as it is", 0, plan)]
    count = len(plan["stages"][stage]["nodes"])
    if stage > 0:
        moved = _with_border(plan, stage, -1, last + 1)
        cases.append((f"on stage {stage - 1}", last + 1, moved))
    if stage + 1 < len(plan["stages"]):
        moved = _with_border(plan, stage, +1, count - first)
        cases.append((f"on stage {stage + 1}", count - first, moved))
    changed = _copied(plan)
    changed["stages"][stage]["recompute"] = not plan["stages"][stage].get("recompute", False)
    word = "without" if plan["stages"][stage].get("recompute") else "with"
    cases.append((f"stage {stage} {word} recompute", 0, changed))
    return [
        {"what": what, "moved": moved} | _judged(each, graph, cluster, request, rows)
        for what, moved, each in cases
    ]


def text(found) -> str:
    """The same as a table of 80 columns."""
    now = found[0]
    lines = [
        "                            operators",
        "what if                         moved        step    change  fullest rank",
        "--------------------------  ---------  ----------  --------  ------------",
    ]
    for case in found:
        line = f"{case['what']:26}  {case['moved']:9}  "
        if not case["valid"]:
            lines.append(f"{line}no plan:".rstrip())
            lines += textwrap.wrap(case["problem"], 78, initial_indent="  ", subsequent_indent="  ")
            continue
        more = case["iteration_ns"] - now["iteration_ns"] if now["valid"] else 0
        step = now["iteration_ns"] if now["valid"] else case["iteration_ns"]
        unit, ns = ("s", 1e9) if step >= 1e10 else ("ms", 1e6) if step >= 1e6 else ("us", 1e3)
        change = "" if case is now else f"{more / ns:+.2f} {unit}"
        time = f"{case['iteration_ns'] / ns:.{2 if unit == 's' else 1}f} {unit}"
        lines.append(f"{line}{time:>10}  {change:>8}  {size(case['peak_bytes']):>12}")
    return "\n".join(lines) + "\n"


def _place(plan, module):
    """Its stage, and its first and last place there."""
    found = []
    for number, stage in enumerate(plan["stages"]):
        at = [i for i, name in enumerate(stage["nodes"]) if f"{name}.".startswith(f"{module}.")]
        if at:
            found.append((number, at[0], at[-1]))
    if not found:
        raise PlannerInputError(f"the plan has no module and no node '{module}'")
    if len(found) > 1:
        numbers = ", ".join(str(number) for number, _, _ in found)
        raise SeveralStages(
            f"What moving '{module}' would cost is not said, as stages {numbers} hold parts of it: "
            "ask for one of these."
        )
    return found[0]


def _copied(plan):
    stages = [{key: stage[key] for key in stage if key not in ("predicted", "notes")}
              for stage in plan["stages"]]  # fmt: skip
    return {key: plan[key] for key in plan if key != "notes"} | {"stages": stages}


def _with_border(plan, stage, direction, count):
    """The plan with ``count`` operators of the stage on its neighbour."""
    moved = _copied(plan)
    nodes, other = plan["stages"][stage]["nodes"], stage + direction
    if direction < 0:
        moved["stages"][stage]["nodes"] = nodes[count:]
        moved["stages"][other]["nodes"] = plan["stages"][other]["nodes"] + nodes[:count]
    else:
        moved["stages"][stage]["nodes"] = nodes[: len(nodes) - count]
        moved["stages"][other]["nodes"] = (
            nodes[len(nodes) - count :] + plan["stages"][other]["nodes"]
        )
    return moved


def _judged(plan, graph, cluster, request, rows):
    if any(not stage["nodes"] for stage in plan["stages"]):
        return {"valid": False, "problem": "nothing would be left of the stage"}
    found = planner.evaluate(plan, graph, cluster, request, global_batch=rows)
    peaks = [stage["peak_bytes"] for stage in found.get("stages", ())]
    return {
        "valid": found["valid"],
        "problem": "" if found["valid"] else found["problems"][0],
        "iteration_ns": found.get("iteration_ns"),
        "peak_bytes": max(peaks, default=0),
    }
