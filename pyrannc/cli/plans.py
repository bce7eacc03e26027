"""``rannc show`` and ``rannc diff``: plan files as text, and as pages."""

import json
import shutil
import textwrap

import typer

from pyrannc import planner
from pyrannc.planner import PlannerInputError


def write_page(path, plans, graph, record) -> None:
    from pyrannc.show import page

    answer(lambda: page.write(path, plans, graph, record))
    typer.echo(f"{path}: the page of {' and '.join(plans)}")


def show(plan, graph, global_batch, width, timeline, names) -> None:
    """Replaces this process by ``rannc-plan``."""
    options = [("--graph", graph), ("--global-batch", global_batch), ("--width", width)]
    arguments = [
        str(part) for name, value in options if value is not None for part in (name, value)
    ]
    flags = [name for name, wanted in (("--timeline", timeline), ("--names", names)) if wanted]
    planner.become(["show", plan, *arguments, *flags])


def figures(plan, graph, record) -> None:
    from pyrannc.show import figures as of

    print(json.dumps(answer(lambda: of.of_plan(plan, graph, record)), indent=1))


def explain(plan, module, graph, cluster, request, width, as_json) -> None:
    from pyrannc.show import figures as of
    from pyrannc.show import moves

    options = [] if width is None else ["--width", str(width)]
    with_costs = graph is not None and cluster is not None
    if as_json:
        where = answer(lambda: of.of_module(plan, module))
        if with_costs:
            where["costs"], why = _costs(plan, module, graph, cluster, request)
            where |= {"why_no_costs": why} if why else {}
        print(json.dumps(where, indent=1))
        return
    if not with_costs:
        planner.become(["explain", plan, module, *options])
    costs, why = _costs(plan, module, graph, cluster, request)
    print(answer(lambda: planner.explain(plan, module, options)))
    print(textwrap.fill(why, width or 80) + "\n" if why else moves.text(costs), end="")


def _costs(*asked):
    """What moving a module costs, or why nothing can be said of it."""
    from pyrannc.show import moves

    try:
        return answer(lambda: moves.costs(*asked)), ""
    except moves.SeveralStages as error:
        return [], str(error)


def diff(first, second, as_json) -> None:
    from pyrannc.show import diff as compared

    if as_json:
        facts = answer(lambda: compared.facts(first, second))
        print(
            json.dumps(
                [dict(zip(("what", "first", "second"), fact, strict=True)) for fact in facts]
            )
        )
        return
    width = shutil.get_terminal_size((80, 24)).columns
    print(answer(lambda: compared.text(first, second, width)), end="")


def answer(call):
    """What ``call`` returns; bad input ends the command with one line."""
    try:
        return call()
    except PlannerInputError as error:
        typer.echo(f"rannc: {error}", err=True)
        raise typer.Exit(2) from None
