"""``rannc advise``: what training would take on other numbers of devices."""

import json
import tempfile
from pathlib import Path

import typer

from pyrannc import planner
from pyrannc.cli.plans import answer


def advise(
    target, cluster, batch, devices, memory, recompute, dtype, device, request, price, html, as_json
) -> None:
    from pyrannc.show import advise as what_if

    if html is not None:
        answer(lambda: what_if.check_writable(html))  # before the work
    with tempfile.TemporaryDirectory() as folder:
        rows = answer(
            lambda: what_if.table(
                _graphs(target, dtype, device, Path(folder)),
                cluster,
                _numbers(batch, "--batch"),
                json.loads(Path(request).read_text()) if request else None,
                _numbers(devices, "--devices"),
                _numbers(memory, "--memory") or (None,),
                recompute.split(","),
            )
        )
    if html is not None:
        what_if.write_chart(html, rows, price)
    print(what_if.as_json(rows) if as_json else what_if.text(rows, price), end="")


def _graphs(target, dtypes, device, folder):
    """Paths of graph-profiles by precision; a build is captured once for each."""
    if ":" not in target:
        return {"as given": target}
    from pyrannc.errors import RaNNCError
    from pyrannc.profiling import graph_profile

    found = {}
    for dtype in dtypes.split(","):
        path = folder / f"{dtype}.json"
        try:
            build = graph_profile.load_build(target)
            profile = graph_profile.graph_profile(build, device=device, dtype=dtype)
        except RaNNCError as error:
            typer.echo(f"rannc: {error}", err=True)
            raise typer.Exit(2) from None
        path.write_text(profile.to_json())
        found[dtype] = path
    return found


def _numbers(text, option):
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise planner.PlannerInputError(
            f"{option} takes numbers, as 512,1024; found '{text}'"
        ) from None
