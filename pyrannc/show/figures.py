"""The figures of a plan that ``rannc show`` and ``rannc explain`` print, as data."""

import json

from pyrannc import planner
from pyrannc.planner import PlannerInputError
from pyrannc.show import record as records
from pyrannc.show.page import read


def of_plan(path, graph=None, record=None) -> dict:
    """What ``rannc show --json`` prints: times in ``_ns``, memory in ``_bytes``, of one rank.

    Args:
        path: Of the plan.
        graph: Of the graph-profile that it must be a plan of.
        record: Of a record of a run, whose figures stand under ``measured``.

    Returns:
        ``feasible``, and where it is not, ``reason``. Figures that the plan does not say are None.

    Raises:
        PlannerInputError: A file cannot be used, or they do not belong together.
    """
    plan = _read(path, graph)
    if not plan.get("feasible", True):
        return {"feasible": False, "reason": plan.get("reason")}
    notes = plan.get("notes", {})
    rows, step_ns = notes.get("global_batch"), notes.get("step_ns") or plan.get("iteration_ns")
    peaks = notes.get("step_peak_bytes")
    figures = {
        "feasible": True,
        "iteration_ns": plan.get("iteration_ns"),
        "step_ns": step_ns,
        "rows": rows,
        "rows_per_s": rows / (step_ns / 1e9) if rows and step_ns else None,
        "schedule": plan["schedule"],
        "interleave": plan.get("interleave", 1),
        "micro_batches": plan["micro_batches"],
        "ranks": len({rank for stage in plan["stages"] for rank in stage["ranks"]}),
        "stages": [
            _stage(stage, peaks[s] if peaks else None) for s, stage in enumerate(plan["stages"])
        ],
    }
    for name in ("memory_limit_bytes", "bound_ns", "gap", "parts", "transfers", "alternatives"):
        figures[name] = notes.get(name)
    if record is not None:
        figures["measured"] = records.found(record, path)
    return figures


def of_module(path, module) -> dict:
    """Where a plan has a module or an operator: each stage that holds some of it.

    Raises:
        PlannerInputError: The plan cannot be used, or does not have it.
    """
    plan = _read(path)
    if not plan.get("feasible", True):
        raise PlannerInputError(f"{path}: {plan.get('reason')}")
    holders = []
    for number, stage in enumerate(plan["stages"]):
        held = [name for name in stage["nodes"] if f"{name}.".startswith(f"{module}.")]
        if held:
            holders.append({"stage": number, "operators_of_it": len(held)} | _stage(stage))
    if not holders:
        raise PlannerInputError(f"the plan has no module and no node '{module}'")
    return {"module": module, "stages": holders}


def _read(path, graph=None):
    planner.check_shown(path, graph)
    return json.loads(read(path))


def _stage(stage, peak=None):
    predicted = dict(stage.get("predicted") or {})
    if peak is not None:
        predicted["peak_bytes"] = peak
    return {
        "modules": stage.get("notes", {}).get("modules"),
        "operators": len(stage["nodes"]),
        "ranks": stage["ranks"],
        "recompute": bool(stage.get("recompute")),
        "predicted": predicted or None,
    }
