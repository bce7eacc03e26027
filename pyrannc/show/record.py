"""Records of runs: what steps took, as ``model.metrics()`` says it, in a file."""

import json

from pyrannc.planner import PlannerInputError

FORMAT, VERSION = "rannc-run", 1


def checked(path, plan_path) -> str:
    """As :func:`found`, as JSON."""
    return json.dumps(found(path, plan_path))


def found(path, plan_path) -> dict:
    """The last record in a file of one or of many, a line each.

    Raises:
        PlannerInputError: It cannot be read, is no record, is of another version, or is of a run
            under another plan.
    """
    from pyrannc.show.page import read

    lines = [line for line in read(path).splitlines() if line.strip()]
    if not lines:
        raise PlannerInputError(f"{path}: is empty, and no record of a run")
    record = _parsed(lines[-1]) or _parsed("\n".join(lines))
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise PlannerInputError(
            f"{path}: is no record of a run ('format' must be '{FORMAT}'); model.metrics() and the "
            "setting metrics_file give one"
        )
    if record.get("version") != VERSION:
        raise PlannerInputError(
            f"{path}: is a record of version {record.get('version')!r}; this RaNNC reads {VERSION}"
        )
    if "step_ns" not in record:
        raise PlannerInputError(
            f"{path}: has nothing measured yet: its record was taken after {record.get('steps')} "
            "steps; numbers come after the tenth"
        )
    if problem := _malformed(record):
        raise PlannerInputError(f"{path}: {problem}")
    plan = json.loads(read(plan_path))
    if not plan.get("feasible", True):
        raise PlannerInputError(f"{path}: is of a run, but {plan_path} says that no plan fits")
    stages, measured = len(plan.get("stages", ())), len(record.get("stages", ()))
    ours, theirs = plan.get("notes", {}).get("fingerprint"), record.get("fingerprint")
    if ours and theirs and ours != theirs:
        raise PlannerInputError(
            f"{path}: is of another model than {plan_path}: its fingerprint is {theirs}, the "
            f"plan's {ours}"
        )
    if stages != measured:
        raise PlannerInputError(
            f"{path}: is of a run with {measured} stages, but {plan_path} has {stages}"
        )
    for index, (stage, ran) in enumerate(zip(plan["stages"], record["stages"], strict=True)):
        # A plan from files has no fingerprint.
        if ran.get("ranks", stage["ranks"]) != stage["ranks"]:
            raise PlannerInputError(
                f"{path}: is of a run under another plan than {plan_path}: stage {index} ran on "
                f"{_ranks(ran['ranks'])}, the plan has it on {_ranks(stage['ranks'])}"
            )
    return record


def _ranks(ranks):
    if not isinstance(ranks, list):
        return repr(ranks)
    if len(ranks) > 8:
        return f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}"
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def _malformed(record):
    """What the page could not draw, or None."""

    def is_number(value):
        return isinstance(value, int | float) and not isinstance(value, bool)

    for name in ("step_ns", "predicted_step_ns"):
        if not is_number(record.get(name, 0)):
            return f"$.{name}: expected a number, found {record[name]!r}"
    for name, numbers in (("stages", ("peak_bytes",)), ("ranks", ())):
        items = record.get(name, [])
        if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
            return f"$.{name}: expected a list of objects"
        for index, each in enumerate(items):
            for key in numbers or each:
                if not is_number(each.get(key)):
                    return f"$.{name}[{index}].{key}: expected a number, found {each.get(key)!r}"
    return None


def _parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None
